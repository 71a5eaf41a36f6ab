package tsc

const supported = true

// read answers the processor's time stamp counter, which guests see plus an offset.
func read() uint64
