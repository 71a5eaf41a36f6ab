//go:build slow

package machine

import "testing"

// TestStreamNumbers measures a guest of 512 MiB, filled with parts of programs, of which 40 MiB are used at first.
// It checks what streaming does, not how long that takes.
func TestStreamNumbers(t *testing.T) {
	testStreaming(t, large, "mkdir /mem && mount -t tmpfs -o size=400m tmpfs /mem && cd /mem && "+
		"find /usr/bin /usr/lib -xdev -type f | xargs cat 2>/dev/null | head -c 36000000 > hot && "+
		"for i in 1 2 3 4 5; do tr \"\\000-\\377\" \"\\00$i-\\377\\000\" < hot > cold$i; done; "+
		"echo word > /root/word; sync",
		"cat /mem/hot | md5sum && cat /root/word")
}
