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
	b.upload = true // its writer, asked to store what the service refuses, ends the program
	return b, nil
}
