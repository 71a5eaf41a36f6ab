package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// descriptionVersion is that of the format of descriptions. Fields may be added to it.
const descriptionVersion = 1

// Bounds of what is parsed: the description comes from an object store.
const (
	maxRoles      = 10_000
	maxStorageMiB = 1 << 30
)

// Description is what a node must know of a database, beside its data, to adopt it.
//
// It has secrets, and is for sealed places only.
type Description struct {
	Database   store.Database
	Roles      []store.DatabaseRole
	StorageMiB int64 // of its server
	Timeline   int64 // grows with every failover
}

// document is a description as it is written. Names of fields are part of the format.
type document struct {
	Version       int    `json:"version"`
	ID            string `json:"id"`
	Workspace     string `json:"workspace"`
	Label         string `json:"label"`
	Size          string `json:"size"`
	VCPUs         int    `json:"vcpus"`
	Template      string `json:"template"`
	Server        string `json:"server"`
	Variant       string `json:"variant"`
	Collation     string `json:"collation_version"`
	Extensions    string `json:"extensions"`
	Password      string `json:"password"`
	Verifier      string `json:"verifier"`
	BrokerToken   string `json:"broker_token"`
	AlwaysOn      bool   `json:"always_on"`
	IdleSeconds   int64  `json:"idle_seconds"`
	Durability    string `json:"durability"`
	StorageMaxMiB int64  `json:"storage_max_mib"`
	Networks      string `json:"networks"`
	Replicas      int    `json:"replicas"`
	ClonedFrom    string `json:"cloned_from"`
	SchemaOnly    bool   `json:"schema_only"`
	Expires       int64  `json:"expires"`
	Created       int64  `json:"created"`
	StorageMiB    int64  `json:"storage_mib"`
	Timeline      int64  `json:"timeline"`

	Roles []role `json:"roles"`
}

type role struct {
	Name     string `json:"name"`
	Verifier string `json:"verifier"`
}

// Encode writes a description. Equal descriptions have equal texts.
func (d Description) Encode() ([]byte, error) {
	b := d.Database
	out := document{
		Version: descriptionVersion, ID: b.ID, Workspace: b.Workspace, Label: b.Label, Size: b.Size, VCPUs: b.VCPUs,
		Template: b.Template, Server: b.Version, Variant: b.Variant, Collation: b.Collation, Extensions: b.Extensions,
		Password: b.Password, Verifier: b.Verifier, BrokerToken: b.BrokerToken, AlwaysOn: b.AlwaysOn,
		IdleSeconds: b.IdleSeconds, Durability: b.Durability, StorageMaxMiB: b.StorageMaxMiB, Networks: b.Networks,
		Replicas: b.Replicas, ClonedFrom: b.ClonedFrom, SchemaOnly: b.SchemaOnly, Expires: b.Expires,
		Created: b.Created, StorageMiB: d.StorageMiB, Timeline: d.Timeline,
	}
	for _, r := range d.Roles {
		out.Roles = append(out.Roles, role{r.Name, r.Verifier})
	}
	return json.Marshal(out)
}

// ParseDescription is the inverse of Encode, for the database with an id.
func ParseDescription(id string, text []byte) (Description, error) {
	var b document
	if err := json.Unmarshal(text, &b); err != nil {
		return Description{}, fmt.Errorf("description of database %s: %w", id, err)
	}
	if err := b.check(id); err != nil {
		return Description{}, fmt.Errorf("description of database %s: %w", id, err)
	}
	out := Description{
		Database: store.Database{
			ID: b.ID, Workspace: b.Workspace, Label: b.Label, Size: b.Size, VCPUs: b.VCPUs, Template: b.Template,
			Version: b.Server, Variant: b.Variant, Collation: b.Collation, Extensions: b.Extensions,
			Password: b.Password, Verifier: b.Verifier, BrokerToken: b.BrokerToken, AlwaysOn: b.AlwaysOn,
			IdleSeconds: b.IdleSeconds, Durability: b.Durability, StorageMaxMiB: b.StorageMaxMiB,
			Networks: b.Networks, Replicas: b.Replicas, ClonedFrom: b.ClonedFrom, SchemaOnly: b.SchemaOnly,
			Expires: b.Expires, Created: b.Created,
		},
		StorageMiB: b.StorageMiB, Timeline: b.Timeline,
	}
	for _, r := range b.Roles {
		out.Roles = append(out.Roles, store.DatabaseRole{Database: id, Name: r.Name, Verifier: r.Verifier})
	}
	return out, nil
}

// check refuses what no node writes.
func (b *document) check(id string) error {
	_, badID := api.ParseDatabaseID(b.ID)
	switch {
	case b.Version != descriptionVersion:
		return fmt.Errorf("it has version %d, and this node knows %d: upgrade it", b.Version, descriptionVersion)
	case b.ID != id || badID != nil:
		return fmt.Errorf("it is that of %.60q", b.ID)
	case b.Workspace == "" || b.Template == "" || b.Verifier == "" || b.BrokerToken == "":
		return errors.New("it lacks its workspace, its template or its credentials")
	case b.StorageMiB < 0 || b.StorageMiB > maxStorageMiB || b.StorageMaxMiB < 0 || b.StorageMaxMiB > maxStorageMiB:
		return fmt.Errorf("its storage has %d MiB of %d MiB", b.StorageMiB, b.StorageMaxMiB)
	case b.IdleSeconds < 0 || b.Replicas < 0 || b.Timeline < 0 || len(b.Roles) > maxRoles:
		return errors.New("its numbers are out of range")
	case b.Durability != string(api.DurabilityAsync) && b.Durability != string(api.DurabilitySync):
		return fmt.Errorf("its durability is %.60q", b.Durability)
	}
	for _, list := range []string{b.Extensions, b.Networks} {
		var texts []string
		if list != "" && json.Unmarshal([]byte(list), &texts) != nil {
			return fmt.Errorf("%.60q is no list", list)
		}
	}
	for _, r := range b.Roles {
		if r.Name == "" || strings.ContainsRune(r.Name, 0) {
			return fmt.Errorf("a role has the name %.60q", r.Name)
		}
	}
	return nil
}
