//go:build azure

package blob

import (
	"context"
	"net/url"

	"gocloud.dev/blob/azureblob"
)

func openAzure(ctx context.Context, u *url.URL) (Store, error) {
	b, err := openBucket(ctx, &azureblob.URLOpener{
		MakeClient: azureblob.NewDefaultClient, ServiceURLOptions: *azureblob.NewDefaultServiceURLOptions(),
	}, u)
	if err != nil {
		return nil, err
	}
	b.upload = true // the writer of this client panics if the service rejects the object
	return b, nil
}
