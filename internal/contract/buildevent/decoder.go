package buildevent

import "github.com/pandastack/pandastack/internal/lib/jsonlines"

// NewDecoder returns a decoder of the output of the program.
func NewDecoder() *jsonlines.Decoder[Event] {
	return &jsonlines.Decoder[Event]{Limit: MaxLine, Decode: Decode}
}
