package hostapi

import "strings"

// LabelOwner is the label that names the owner of a machine, snapshot or template, as "kind/id".
const LabelOwner = "owner"

// LabelKind is the label by which older versions marked what belongs to builds, with the value KindBuild. New
// objects of builds still have it, so that an older version leaves them alone.
const (
	LabelKind = "kind"
	KindBuild = "build"
)

// Kinds of owners.
const (
	OwnerSandbox = "sandbox"
	OwnerBuild   = "build"
)

// Owner is the object on whose behalf something exists; the service for that kind removes what the owner
// leaves behind. The zero Owner is none.
type Owner struct {
	Kind string // "sandbox", "build", ...
	ID   string // "": not known, of a label that an older version wrote
}

// IsZero reports whether there is no owner.
func (o Owner) IsZero() bool { return o == Owner{} }

// String returns "kind/id", or "" for no owner.
func (o Owner) String() string {
	if o.IsZero() {
		return ""
	}
	return o.Kind + "/" + o.ID
}

// ParseOwner reads what String returned. A text without a slash is a kind.
func ParseOwner(text string) Owner {
	kind, id, _ := strings.Cut(text, "/")
	return Owner{Kind: kind, ID: id}
}

// OwnerOf returns the owner that labels name.
func OwnerOf(labels map[string]string) Owner {
	if text := labels[LabelOwner]; text != "" {
		return ParseOwner(text)
	}
	if kind := labels[LabelKind]; kind != "" {
		return Owner{Kind: kind, ID: labels[kind]} // builds have their id under the label "build"
	}
	return Owner{}
}
