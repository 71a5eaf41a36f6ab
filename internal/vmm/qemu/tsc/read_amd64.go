package tsc

const supported = true

// read returns the time stamp counter of the processor. Guests see it plus an offset.
func read() uint64
