package interpreter

// ParseEnvironment is for tests.
var ParseEnvironment = parseEnvironment
