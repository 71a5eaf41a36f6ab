package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// The states of a build's row. See view for the states that users see.
const (
	stateQueued  = "queued"
	stateRunning = "running"
	stateDone    = "done"
	stateFailed  = "failed"
)

// Spec is a build request as it is stored: without secrets, with E2B's steps and the upload.
type Spec struct {
	api.BuildRequest
	Steps  []Step `json:"steps,omitempty"`   // steps of E2B's builder, on ImageRef or FromTemplate
	OnBase bool   `json:"on_base,omitempty"` // Steps run on FromTemplate, which may be a recipe
	Rootfs bool   `json:"rootfs,omitempty"`  // the upload is a root file system
	Input  string `json:"input,omitempty"`   // SHA-256 of the upload
	// Sources is what the references meant at the time of the request: see Service.resolveSources.
	Sources []string `json:"basis,omitempty"`
}

// Step is one step of E2B's builder.
type Step struct {
	Type  string   `json:"type"` // RUN, COPY, ENV, USER, WORKDIR
	Args  []string `json:"args"`
	Files string   `json:"files,omitempty"` // hash of the upload with the files of a COPY
	Force bool     `json:"force,omitempty"` // use no layer for this step and those after it
}

// hash identifies the result of a build: two builds with the same hash make the same template.
func (sp Spec) hash() string {
	sp.Name, sp.Tags, sp.Replace, sp.Description, sp.Global, sp.NoCache, sp.Registry = "", nil, false, "", false,
		false, nil
	data, err := json.Marshal(sp)
	if err != nil { // a struct of strings and numbers always marshals
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// mutable reports whether the same spec may have another result later.
func (sp Spec) mutable() bool { return sp.FromSandbox != "" || sp.NoCache }

// unpinned in Spec.Sources represents a reference whose meaning the registry may change at any time.
const unpinned = "moves"

func (sp Spec) encode() (string, error) {
	sp.Registry = nil
	data, err := json.Marshal(sp)
	return string(data), err
}

func decodeSpec(text string) (sp Spec, err error) {
	if err = json.Unmarshal([]byte(text), &sp); err != nil {
		err = fmt.Errorf("the request of the build cannot be read: %w", err)
	}
	return sp, err
}

// check refuses a request without exactly one source, or with malformed steps.
func (sp Spec) check() error {
	if err := sp.BuildRequest.Validate(); err != nil {
		return err
	}
	none := sp.Dockerfile == "" && sp.ImageRef == "" && sp.FromSandbox == "" && sp.FromSnapshot == "" &&
		sp.FromTemplate == ""
	switch {
	case none && !sp.Rootfs:
		return api.Errorf(api.Invalid, "dockerfile: a build needs a source: "+
			"a Dockerfile, image_ref, rootfs, from_sandbox, from_snapshot or from_template").With("field", "dockerfile")
	case !none && sp.Rootfs:
		return api.Errorf(api.Invalid, "rootfs: name one source of the build").With("field", "rootfs")
	}
	for i, step := range sp.Steps {
		if err := step.check(); err != nil {
			return api.Errorf(api.Invalid, "steps[%d]: %s", i, err).With("field", "steps")
		}
	}
	return nil
}

// check returns an error if the step is malformed.
func (st Step) check() error {
	n := len(st.Args)
	switch {
	case st.Type == "RUN" && (n < 1 || n > 2 || st.Args[0] == ""):
		return fmt.Errorf("RUN takes a command and, optionally, a user")
	case st.Type == "COPY" && (n < 2 || n > 4 || st.Files == ""):
		return fmt.Errorf("COPY takes source, destination, user and mode, and the hash of its files")
	case st.Type == "ENV" && (n == 0 || n%2 != 0):
		return fmt.Errorf("ENV takes pairs of name and value")
	case (st.Type == "USER" || st.Type == "WORKDIR") && (n != 1 || st.Args[0] == ""):
		return fmt.Errorf("%s takes one value", st.Type)
	}
	switch st.Type {
	case "RUN", "COPY", "ENV", "USER", "WORKDIR":
		return nil
	}
	return fmt.Errorf("unknown type %.40q: use RUN, COPY, ENV, USER or WORKDIR", st.Type)
}

// parseDockerfile parses the Dockerfile; base resolves its references.
func (sp Spec) parseDockerfile(base func(ref string) (dockerfile.Base, error)) (*dockerfile.Plan, error) {
	plan, err := dockerfile.Parse(
		[]byte(sp.Dockerfile),
		dockerfile.Options{Args: sp.Args, Target: sp.Target, Base: base},
	)
	if err != nil {
		return nil, fmt.Errorf("read Dockerfile: %w", err)
	}
	return plan, nil
}
