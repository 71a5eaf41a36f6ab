package qemu

const hasTSC = true

// readTSC answers the processor's time stamp counter, which guests see plus an offset.
func readTSC() uint64
