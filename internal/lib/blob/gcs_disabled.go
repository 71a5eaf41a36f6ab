//go:build !gcs

package blob

import (
	"context"
	"errors"
	"net/url"
)

func openGCS(context.Context, *url.URL) (Store, error) {
	return nil, errors.New("this program was built without Google Cloud Storage; build it with -tags gcs")
}
