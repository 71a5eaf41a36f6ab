package api

import "time"

// AppLogLine is one line of the log of a deployment.
type AppLogLine struct {
	Seq   int64     `json:"seq" doc:"Counts from 1; the id of the event."`
	Time  time.Time `json:"time"`
	Level string    `json:"level" enum:"info,warn,error" doc:"Output of steps is info."`
	Step  string    `json:"step,omitempty"`
	Line  string    `json:"line"`
}

// AppOutput is one line that a replica of an app printed.
type AppOutput struct {
	SandboxID SandboxID `json:"sandbox_id" doc:"The replica."`
	Stream    string    `json:"stream" enum:"stdout,stderr"`
	Line      string    `json:"line"`
}
