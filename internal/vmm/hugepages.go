package vmm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// HugePageBytes is the size of the pages that Spec.HugePages asks for.
const HugePageBytes = 2 << 20

// ReadHugePages returns how many bytes of huge pages this host reserves, in use or not.
func ReadHugePages() (int64, error) {
	text, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
	if err != nil {
		return 0, fmt.Errorf("huge pages of this host: %w", err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("huge pages of this host: %w", err)
	}
	return n * HugePageBytes, nil
}
