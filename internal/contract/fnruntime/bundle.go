package fnruntime

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a bundle when it is unpacked.
const (
	MaxUnpacked = 512 << 20 // bytes
	MaxFiles    = 50_000
	maxManifest = 16 << 20 // bytes of all that dependencies depend on
)

// ErrBundle is the error of a bundle that cannot be read, or is too large.
var ErrBundle = errors.New("the bundle cannot be unpacked")

// OpenBundle returns the content of a bundle, which is a tar archive or else the text of one file. Either may be
// compressed with gzip.
//
// No more than MaxUnpacked bytes can be read.
func OpenBundle(r io.Reader) (content io.Reader, archive bool, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return nil, false, fmt.Errorf("%w: %w", ErrBundle, err)
		}
		in = bufio.NewReaderSize(unzipped, 64<<10)
	}
	head, err := in.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, fmt.Errorf("%w: %w", ErrBundle, err)
	}
	return &bounded{r: in, left: MaxUnpacked}, isTar(head), nil
}

// isTar reports whether block is the header of an entry of a tar archive, or the end of an empty one.
func isTar(block []byte) bool {
	if len(block) < 512 {
		return false
	}
	if bytes.Equal(block, make([]byte, 512)) {
		return true
	}
	want, err := strconv.ParseInt(strings.Trim(string(block[148:156]), " \x00"), 8, 32)
	sum := int64(8 * ' ')
	for i, b := range block {
		if i < 148 || i >= 156 {
			sum += int64(b)
		}
	}
	return err == nil && sum == want
}

// bounded fails when more than left bytes are read.
type bounded struct {
	r    io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: it has more than %d MiB", ErrBundle, MaxUnpacked>>20)
	}
	return n, err
}

// Of each group of files, dependencies are those of the bundle's top directory.
var (
	nodeFiles = []string{
		".npmrc", ".yarnrc", ".yarnrc.yml", "bun.lock", "bun.lockb", "npm-shrinkwrap.json", "package-lock.json",
		"package.json", "pnpm-lock.yaml", "pnpm-workspace.yaml", "yarn.lock",
	}
	pythonFiles  = []string{"poetry.lock", "poetry.toml", "pyproject.toml", "uv.lock"}
	requirements = regexp.MustCompile(`^(requirements|constraints)[A-Za-z0-9._-]*\.(txt|in)$`)
	// Lines of requirements and lock files, and values in package.json, that name files of the bundle.
	localRequirement = regexp.MustCompile(`(?m)^\s*(-e\b|--editable\b|-[rc]\s*\S*/|\.|/|\S+\s*@\s*file:)`)
	localLocked      = map[string]*regexp.Regexp{
		"poetry.lock": regexp.MustCompile(`(?m)^type = "(directory|file)"`),
		"uv.lock":     regexp.MustCompile(`source = \{ (directory|editable|path) = "([^."]|\.[^"])`),
	}
	localPackage = regexp.MustCompile(`^(file|link|workspace|portal|patch):|^\.|^/`)
)

// Manifests returns the files that a bundle's dependencies depend on, as an archive, and their hash.
//
// The key is empty if there is nothing to install. The archive is nil if what is to be installed is in the bundle too:
// then everything depends on the whole bundle, and the key is its hash. Bundles are not trusted.
func Manifests(bundle io.Reader) (archive []byte, key string, err error) {
	whole := sha256.New()
	content, isArchive, err := OpenBundle(io.TeeReader(bundle, whole))
	if err != nil || !isArchive {
		return nil, "", err
	}
	files := map[string][]byte{}
	vendored, size := false, 0
	err = EachFile(content, func(name string, h *tar.Header, in io.Reader) error {
		vendored = vendored || strings.HasPrefix(name, "node_modules/")
		if h.Typeflag != tar.TypeReg || !isManifest(name) {
			return nil
		}
		if size += int(min(h.Size, maxManifest+1)); size > maxManifest {
			return fmt.Errorf("%w: %s and the like have more than %d MiB", ErrBundle, name, maxManifest>>20)
		}
		data, err := io.ReadAll(in)
		files[name] = data
		return err
	})
	if err != nil {
		return nil, "", err
	}
	local := prune(files, vendored)
	if len(files) == 0 {
		return nil, "", nil
	}
	if local {
		if _, err := io.Copy(io.Discard, io.TeeReader(bundle, whole)); err != nil {
			return nil, "", err
		}
		return nil, hex.EncodeToString(whole.Sum(nil)), nil
	}
	return pack(files)
}

// EachFile calls each with every entry of an archive, with its clean name. The first error ends it.
func EachFile(content io.Reader, each func(name string, h *tar.Header, in io.Reader) error) error {
	in := tar.NewReader(content)
	size := int64(0)
	for n := 0; ; n++ {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%w: %w", ErrBundle, err)
		case n == MaxFiles:
			return fmt.Errorf("%w: it has more than %d files", ErrBundle, MaxFiles)
		}
		if size += h.Size; size > MaxUnpacked {
			return fmt.Errorf("%w: it has more than %d MiB", ErrBundle, MaxUnpacked>>20)
		}
		if err := each(path.Clean(h.Name), h, in); err != nil {
			return err
		}
	}
}

func isManifest(name string) bool {
	return slices.Contains(nodeFiles, name) || slices.Contains(pythonFiles, name) || requirements.MatchString(name)
}

// prune removes files that install nothing, and reports whether others refer to more of the bundle.
func prune(files map[string][]byte, vendored bool) (local bool) {
	var p struct {
		Dependencies map[string]string `json:"dependencies"`
		Optional     map[string]string `json:"optionalDependencies"`
		Scripts      map[string]string `json:"scripts"`
	}
	// A package.json that cannot be read is kept: the package manager says what is wrong with it.
	err := json.Unmarshal(files["package.json"], &p)
	if vendored || files["package.json"] == nil || err == nil && len(p.Dependencies)+len(p.Optional) == 0 {
		for _, name := range nodeFiles {
			delete(files, name)
		}
	} else {
		for _, deps := range []map[string]string{p.Dependencies, p.Optional} {
			for _, from := range deps {
				local = local || localPackage.MatchString(from)
			}
		}
		for _, script := range []string{"preinstall", "install", "postinstall", "prepare"} {
			local = local || p.Scripts[script] != ""
		}
	}
	project, plain := false, false
	for name, data := range files {
		project = project || name == "pyproject.toml"
		if at := localLocked[name]; at != nil {
			local = local || at.Match(data)
		}
		if requirements.MatchString(name) {
			plain = plain || name == "requirements.txt"
			local = local || localRequirement.Match(data)
		}
	}
	if !project && !plain {
		maps.DeleteFunc(files, func(name string, _ []byte) bool {
			return requirements.MatchString(name) || slices.Contains(pythonFiles, name)
		})
	}
	return local
}

// pack writes files as an archive that depends on nothing else, and returns its hash.
func pack(files map[string][]byte) ([]byte, string, error) {
	var to bytes.Buffer
	out := tar.NewWriter(&to)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data := files[name]
		h := &tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Typeflag: tar.TypeReg}
		if err := out.WriteHeader(h); err != nil {
			return nil, "", err
		}
		if _, err := out.Write(data); err != nil {
			return nil, "", err
		}
	}
	if err := out.Close(); err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(to.Bytes())
	return to.Bytes(), hex.EncodeToString(sum[:]), nil
}
