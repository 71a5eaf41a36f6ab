package control

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/volume"
)

func (s *Server) volumeRoutes() map[string]route {
	return map[string]route{
		"GET /volumes":         {s.listVolumes, ""},
		"POST /volumes":        {s.createVolume, ""},
		"GET /volumes/{id}":    {s.getVolume, ""},
		"DELETE /volumes/{id}": {s.deleteVolume, ""},

		"GET /volumecontent/{id}/path":    {s.content(false, statPath), "path"},
		"PATCH /volumecontent/{id}/path":  {s.content(true, changePath), "path"},
		"DELETE /volumecontent/{id}/path": {s.content(true, removePath), "path"},
		"GET /volumecontent/{id}/dir":     {s.content(false, listDir), "path depth"},
		"POST /volumecontent/{id}/dir":    {s.content(true, makeDir), "path uid gid mode force"},
		"GET /volumecontent/{id}/file":    {s.content(false, readFile), "path"},
		"PUT /volumecontent/{id}/file":    {s.content(true, writeFile), "path uid gid mode force"},
	}
}

// volumes returns the service for volumes.
func (s *Server) volumes() (*volume.Service, error) {
	if s.cfg.Volumes == nil {
		return nil, api.Errorf(api.Unsupported, "volumes are not supported by this server")
	}
	return s.cfg.Volumes, nil
}

type volumeInfo struct {
	VolumeID string `json:"volumeID"`
	Name     string `json:"name"`
}

type volumeResponse struct {
	volumeInfo
	Token string `json:"token"` // "": the key may not read and write files
}

// volumeResponse returns a volume with a token for its content if the key of the caller may have one.
func (s *Server) volumeResponse(p auth.Principal, v api.Volume) volumeResponse {
	a := volumeResponse{volumeInfo: volumeInfo{string(v.ID), v.Name}}
	if p.Scopes.Has(api.ScopeFiles) {
		a.Token = s.volumeToken(v.ID, p.KeyPrefix, time.Now().Add(volumeTokenTTL))
	}
	return a
}

func (s *Server) createVolume(r *http.Request, p auth.Principal) (int, any, error) {
	var in struct {
		Name string `json:"name"`
	}
	all, err := s.volumes()
	if err == nil {
		err = s.decode(r, &in)
	}
	if err != nil {
		return 0, nil, err
	}
	v, err := all.Create(r.Context(), p, api.CreateVolumeRequest{Name: in.Name})
	return http.StatusCreated, s.volumeResponse(p, v), err
}

func (s *Server) listVolumes(r *http.Request, p auth.Principal) (int, any, error) {
	all, err := s.volumes()
	if err != nil {
		return 0, nil, err
	}
	list, err := all.List(r.Context(), p)
	out := []volumeInfo{}
	for _, v := range list {
		out = append(out, volumeInfo{string(v.ID), v.Name})
	}
	return http.StatusOK, out, err
}

func (s *Server) getVolume(r *http.Request, p auth.Principal) (int, any, error) {
	all, err := s.volumes()
	if err != nil {
		return 0, nil, err
	}
	v, err := all.Get(r.Context(), p, r.PathValue("id"))
	return http.StatusOK, s.volumeResponse(p, v), err
}

func (s *Server) deleteVolume(r *http.Request, p auth.Principal) (int, any, error) {
	all, err := s.volumes()
	if err != nil {
		return 0, nil, err
	}
	return http.StatusNoContent, nil, all.Delete(r.Context(), p, r.PathValue("id"), false)
}

// volumeTokenTTL is how long a token for the content of a volume is valid, if its key is valid as long. Clients get
// another one when they connect to the volume.
const volumeTokenTTL = 24 * time.Hour

// volumeTokenPrefix begins every token for the content of a volume.
const volumeTokenPrefix = "e2bv_"

// volumeToken returns a credential for the content of one volume. It stands for a key, named by its prefix, until a
// time: what the key may do then, and in its workspace only.
func (s *Server) volumeToken(id api.VolumeID, key string, until time.Time) string {
	text := fmt.Sprintf("%s.%s.%d", id, key, until.Unix())
	mac := hmac.New(sha256.New, s.cfg.Secret)
	mac.Write([]byte("volume:" + text)) // a hash never returns an error
	return volumeTokenPrefix + text + "." + hex.EncodeToString(mac.Sum(nil))
}

// keyOfVolumeToken returns the prefix of the key that gave out a token for the content of the volume with an id.
func (s *Server) keyOfVolumeToken(token, id string) (key string, err error) {
	parts := strings.Split(strings.TrimPrefix(token, volumeTokenPrefix), ".")
	if len(parts) != 4 || parts[0] != id {
		return "", api.Errorf(api.Unauthenticated, "the token is not one of volume %.40q: connect to the volume", id)
	}
	until, err := strconv.ParseInt(parts[2], 10, 64)
	want := s.volumeToken(api.VolumeID(id), parts[1], time.Unix(until, 0))
	if err != nil || !hmac.Equal([]byte(token), []byte(want)) {
		return "", api.Errorf(api.Unauthenticated, "the token is not valid: connect to the volume for another")
	}
	if time.Now().Unix() > until {
		return "", api.Errorf(api.Unauthenticated, "the token has expired: connect to the volume for another")
	}
	return parts[1], nil
}
