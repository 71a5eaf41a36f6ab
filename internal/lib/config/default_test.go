package config_test

import (
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/config"
)

func TestDefault(t *testing.T) {
	loaded, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	got := config.Default()
	if got.Sandbox != loaded.Sandbox || got.Capacity != loaded.Capacity || got.Build != loaded.Build {
		t.Errorf("Default() = %+v, want what Load returns without settings: %+v", got, loaded.Node)
	}
	if got.Sandbox.TTL != time.Hour {
		t.Errorf("Default().Sandbox.TTL = %v, want the documented 1h", got.Sandbox.TTL)
	}
}
