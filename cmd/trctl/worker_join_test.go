package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

func TestPins(t *testing.T) {
	for name, tc := range map[string]struct {
		models []string
		tp     int
		gpus   []int // --gpus
		onGPU  bool
		want   []cluster.Pin
		err    string
	}{
		"none":        {tp: 1},
		"on a CPU":    {models: []string{"tiny-s", "tiny-l"}, tp: 1, want: []cluster.Pin{{Model: "tiny-s", Source: "tiny-s", TP: 1}, {Model: "tiny-l", Source: "tiny-l", TP: 1}}},
		"the next":    {models: []string{"tiny-s", "tiny-l"}, tp: 1, gpus: []int{2, 3}, onGPU: true, want: []cluster.Pin{{Model: "tiny-s", Source: "tiny-s", TP: 1, GPUs: []int{2}}, {Model: "tiny-l", Source: "tiny-l", TP: 1, GPUs: []int{3}}}},
		"shared":      {models: []string{"tiny-s", "tiny-l"}, tp: 1, gpus: []int{5}, onGPU: true, want: []cluster.Pin{{Model: "tiny-s", Source: "tiny-s", TP: 1, GPUs: []int{5}}, {Model: "tiny-l", Source: "tiny-l", TP: 1, GPUs: []int{5}}}},
		"chosen":      {models: []string{"tiny-s,gpus=1", "tiny-l,tp=1,gpus=0"}, tp: 1, gpus: []int{0, 1}, onGPU: true, want: []cluster.Pin{{Model: "tiny-s", Source: "tiny-s", TP: 1, GPUs: []int{1}}, {Model: "tiny-l", Source: "tiny-l", TP: 1, GPUs: []int{0}}}},
		"tp":          {models: []string{"tiny-s"}, tp: 2, gpus: []int{0, 1}, onGPU: true, err: "the largest value is 1"},
		"own tp":      {models: []string{"tiny-s,tp=4"}, tp: 1, err: "the largest value is 1"},
		"tp alone":    {tp: 2, err: "--tp 2"},
		"not given":   {models: []string{"tiny-s,gpus=3"}, tp: 1, gpus: []int{0}, onGPU: true, err: "not among --gpus"},
		"too many":    {models: []string{"tiny-s,gpus=0:1"}, tp: 1, onGPU: true, gpus: []int{0, 1}, err: "2 GPUs for tp=1"},
		"twice":       {models: []string{"tiny-s", "tiny-s"}, tp: 1, err: "named twice"},
		"unknown":     {models: []string{"tiny-x"}, tp: 1, err: "--model: "},
		"no name":     {models: []string{",tp=1"}, tp: 1, err: "the name is missing"},
		"bad tp":      {models: []string{"tiny-s,tp=x"}, tp: 1, err: "no number"},
		"negative tp": {models: []string{"tiny-s,tp=-1"}, tp: 1, err: "less than 1"},
		"bad gpus":    {models: []string{"tiny-s,gpus=a"}, tp: 1, err: "no list"},
		"bad key":     {models: []string{"tiny-s,pp=2"}, tp: 1, err: "neither tp nor gpus"},
	} {
		c := workerJoinCmd{Model: tc.models, TP: tc.tp}
		c.GPUs = tc.gpus
		got, models, err := c.pins(tc.gpus, tc.onGPU)
		switch {
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err) || exitCode(err) != exitUsage):
			t.Errorf("%s: %v", name, err)
		case tc.err == "" && (err != nil || !reflect.DeepEqual(got, tc.want) || len(models) != len(tc.want)):
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
