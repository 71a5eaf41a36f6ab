package imagebuild

import (
	"archive/zip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
)

// ErrHash means that fetched content does not match the hash in the recipe.
var ErrHash = errors.New("the content does not match its hash")

// verifyIntegrity checks a file against an npm integrity. "" matches any file.
func verifyIntegrity(path, want string) error {
	if want == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	got, err := digest(sha512.New(), f)
	if err != nil {
		return err
	}
	if got = "sha512-" + got; got != want {
		return fmt.Errorf("%w: it is %s, want %s", ErrHash, got, want)
	}
	return nil
}

func digest(h hash.Hash, r io.Reader) (string, error) {
	if _, err := io.Copy(h, r); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(h.Sum(nil)), nil
}

// verifySum checks the archive of a module against a sum as in go.sum: the hash of the list of all files' hashes, in
// the order of their names. "" matches any archive.
func verifySum(path, want string) error {
	if want == "" {
		return nil
	}
	z, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	defer z.Close()
	files := slices.Clone(z.File)
	slices.SortFunc(files, func(a, b *zip.File) int {
		switch {
		case a.Name < b.Name:
			return -1
		case a.Name > b.Name:
			return 1
		}
		return 0
	})
	all := sha256.New()
	for _, f := range files {
		sum, err := sumOf(f)
		if err != nil {
			return err
		}
		fmt.Fprintf(all, "%x  %s\n", sum, f.Name)
	}
	if got := "h1:" + base64.StdEncoding.EncodeToString(all.Sum(nil)); got != want {
		return fmt.Errorf("%w: it is %s, want %s", ErrHash, got, want)
	}
	return nil
}

func sumOf(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}
