package hosttest

import (
	"archive/tar"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// chmod is the program of that name for octal permissions.
func (s *shell) chmod(args []string) int {
	if len(args) != 2 {
		return 1
	}
	mode, err := strconv.ParseUint(args[0], 8, 32)
	s.p.g.mu.Lock()
	defer s.p.g.mu.Unlock()
	f, ok := s.p.g.files[args[1]]
	if err != nil || !ok {
		return 1
	}
	f.mode = uint32(mode)
	s.p.g.files[args[1]] = f
	return 0
}

// chown is the program of that name for numbers of users and groups.
func (s *shell) chown(args []string) int {
	if len(args) != 3 || args[0] != "-h" {
		return 1
	}
	s.p.g.mu.Lock()
	defer s.p.g.mu.Unlock()
	f, ok := s.p.g.files[args[2]]
	if !ok {
		return 1
	}
	owner := [2]uint32{1000, 1000}
	if f.owner != nil {
		owner = *f.owner
	}
	user, group, _ := strings.Cut(args[1], ":")
	for i, text := range []string{user, group} {
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return 1
		}
		owner[i] = uint32(n)
	}
	f.owner = &owner
	s.p.g.files[args[2]] = f
	return 0
}

// tar is the program of that name: it unpacks its input below -C, or packs the regular files below -C.
func (s *shell) tar(args []string) int {
	i := slices.Index(args, "-C")
	if i < 0 || i+1 == len(args) {
		return 2
	}
	dir := args[i+1]
	if slices.Contains(args, "-x") {
		files, err := readTar(s.p.input, "/")
		if err != nil {
			s.p.print(guestapi.StreamStderr, "tar: "+err.Error()+"\n")
			return 2
		}
		s.p.g.mu.Lock()
		defer s.p.g.mu.Unlock()
		for name, f := range files {
			if s.p.g.writable(path.Join(dir, name)) != nil {
				return 2
			}
			s.p.g.files[path.Join(dir, name)] = f
		}
		return 0
	}
	files := s.p.g.below(dir)
	var out strings.Builder
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if f.dir {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./" + name, Mode: int64(f.mode),
			Size: int64(len(f.data))}); err != nil {
			return 1
		}
		if _, err := w.Write(f.data); err != nil {
			return 1
		}
	}
	if err := w.Close(); err != nil {
		return 1
	}
	s.p.print(guestapi.StreamStdout, out.String())
	return 0
}
