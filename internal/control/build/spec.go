package build

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// The states of a build's row. What users see is derived from it; see view.
const (
	stateQueued  = "queued"
	stateRunning = "running"
	stateDone    = "done"
	stateFailed  = "failed"
)

// Spec is what was asked for, as it is kept: the request without its secrets, and what the face made of it.
type Spec struct {
	api.BuildRequest
	Steps  []Step `json:"steps,omitempty"`   // of E2B's builder, on ImageRef or FromTemplate
	OnBase bool   `json:"on_base,omitempty"` // FromTemplate is what Steps run on, and may be a recipe
	Rootfs bool   `json:"rootfs,omitempty"`  // the upload is a root file system
	Input  string `json:"input,omitempty"`   // SHA-256 of the upload
	// Sources is what the names that it begins with meant when it was asked for: see Service.basis.
	Sources []string `json:"basis,omitempty"`
}

// Step is one step of E2B's builder.
type Step struct {
	Type  string   `json:"type"` // RUN, COPY, ENV, USER, WORKDIR
	Args  []string `json:"args"`
	Files string   `json:"files,omitempty"` // hash of the upload that a COPY takes its files from
	Force bool     `json:"force,omitempty"` // do not use a layer for it or what follows
}

// hash names what a build makes: two builds of the same hash make the same.
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

// mutable tells whether the same spec may make something else tomorrow.
func (sp Spec) mutable() bool { return sp.FromSandbox != "" || sp.NoCache }

// unpinned in a basis stands for a name that only a registry knows the meaning of, and may change it.
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

// check refuses steps that make no sense before anything is made.
func (sp Spec) check() error {
	if err := sp.BuildRequest.Validate(); err != nil {
		return err
	}
	none := sp.Dockerfile == "" && sp.ImageRef == "" && sp.FromSandbox == "" && sp.FromSnapshot == "" &&
		sp.FromTemplate == ""
	switch {
	case none && !sp.Rootfs:
		return api.Errorf(api.Invalid, "dockerfile: a build needs a source: a Dockerfile, image_ref, rootfs, from_sandbox, from_snapshot or from_template").
			With("field", "dockerfile")
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

// check says what is wrong with a step by itself.
func (st Step) check() error {
	n := len(st.Args)
	switch {
	case st.Type == "RUN" && (n < 1 || n > 2 || st.Args[0] == ""):
		return fmt.Errorf("RUN takes a command and a user")
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
	return fmt.Errorf("%.40q is not a kind of step: use RUN, COPY, ENV, USER or WORKDIR", st.Type)
}

// parseDockerfile reads a Dockerfile with what base says of its references.
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
