package api

import "time"

// AppUpload is an archive with the files of an app: POST /v1/apps/{id}/uploads.
type AppUpload struct {
	ID        string    `json:"id" doc:"For the field upload of a deployment."`
	Bytes     int64     `json:"bytes"`
	Format    string    `json:"format" enum:"tar,tar.gz,tar.zst"`
	ExpiresAt time.Time `json:"expires_at" doc:"Until then it can be deployed."`
}

// NewUploadID returns a new random id of an upload: "upl...".
func NewUploadID() string { return newID("upl") }

// ValidUploadID reports whether id has the form of an upload's id, not whether the upload exists.
func ValidUploadID(id string) bool { return validID(id, "upl") }
