//go:build azure

package blob

import (
	"context"
	"net/url"

	"gocloud.dev/blob/azureblob"
)

func openAzure(ctx context.Context, u *url.URL) (Store, error) {
	return openBucket(ctx, &azureblob.URLOpener{
		MakeClient: azureblob.NewDefaultClient, ServiceURLOptions: *azureblob.NewDefaultServiceURLOptions(),
	}, u)
}
