package hostapi

import "strings"

// LabelOwner is the label that names the owner of a machine, snapshot or template, as "kind/id".
const LabelOwner = "owner"

// Older versions mark what belongs to builds with the label LabelKind and the value KindBuild. New objects of builds
// have it, too, so that an older version leaves them alone.
const (
	// LabelKind is the label that names the kind of owner, as older versions write it.
	LabelKind = "kind"
	// KindBuild is the value of LabelKind for objects of builds.
	KindBuild = "build"
)

// Kinds of owners.
const (
	OwnerSandbox = "sandbox"
	OwnerBuild   = "build"
)

// Owner names the object on whose behalf something exists. The zero Owner is none.
//
// The service for that kind of object removes what the owner leaves behind.
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
