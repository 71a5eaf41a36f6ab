package tsc

const has = true

// read answers the processor's time stamp counter, which guests see plus an offset.
func read() uint64
