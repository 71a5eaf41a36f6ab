package control

import (
	"crypto/sha256"
	"encoding/hex"
	"math/big"
	"strings"

	"github.com/pandastack/pandastack/api"
)

// Ids of builds are UUIDs in this protocol: its client in Python refuses others. They stand for our ids, whose 20
// letters and digits are the number in the bits of a UUID that its version (8) and variant do not take.
const (
	buildPrefix  = "bld"
	digits       = 36
	uuidVersion  = 0x80
	uuidVariant  = 0x80
	uuidLength   = 36
	numberLength = 13 // bytes that 20 digits take
)

// buildUUID returns the UUID of a build, or of the recipe of a name, which has none of its own. "" has none.
func buildUUID(id string) string {
	if id == "" {
		return ""
	}
	var u [16]byte
	if !api.BuildID(id).Valid() {
		sum := sha256.Sum256([]byte("recipe " + id))
		copy(u[:], sum[:])
		u[15] |= 1 // no build has it
	} else {
		n, _ := new(big.Int).SetString(strings.TrimPrefix(id, buildPrefix), digits) // a valid id is a number
		var b [numberLength]byte
		n.FillBytes(b[:])
		copy(u[:6], b[:6])
		u[7] = b[6]
		copy(u[9:15], b[7:])
	}
	u[6], u[8] = u[6]&0x0f|uuidVersion, u[8]&0x3f|uuidVariant
	s := hex.EncodeToString(u[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// parseBuildID reads the id of a build: a UUID of buildUUID, or our own form, which older releases of this server sent.
func parseBuildID(text string) (api.BuildID, error) {
	u, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if len(text) != uuidLength || err != nil || len(u) != 16 {
		return api.ParseBuildID(text)
	}
	n := new(big.Int).SetBytes(append(append(append([]byte(nil), u[:6]...), u[7]), u[9:15]...))
	id := n.Text(digits)
	id = buildPrefix + strings.Repeat("0", max(0, 20-len(id))) + id
	if buildUUID(id) != strings.ToLower(text) {
		return "", api.Errorf(api.NotFound, "build %.60q not found", text)
	}
	return api.BuildID(id), nil
}
