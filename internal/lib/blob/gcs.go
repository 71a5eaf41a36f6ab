//go:build gcs

package blob

import (
	"context"
	"net/url"

	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
)

func openGCS(ctx context.Context, u *url.URL) (Store, error) {
	if u.Query().Get("anonymous") == "true" { // no credentials are needed or looked for
		return openBucket(ctx, &gcsblob.URLOpener{}, u)
	}
	credentials, err := gcp.DefaultCredentials(ctx)
	if err != nil {
		return nil, err
	}
	client, err := gcp.NewHTTPClient(gcp.DefaultTransport(), gcp.CredentialsTokenSource(credentials))
	if err != nil {
		return nil, err
	}
	return openBucket(ctx, &gcsblob.URLOpener{Client: client}, u)
}
