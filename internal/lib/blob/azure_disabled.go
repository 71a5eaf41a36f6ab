//go:build !azure

package blob

import (
	"context"
	"errors"
	"net/url"
)

func openAzure(context.Context, *url.URL) (Store, error) {
	return nil, errors.New("this program was built without Azure; build it with -tags azure")
}
