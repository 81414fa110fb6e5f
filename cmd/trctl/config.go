package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/near"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 1 << 20

// settings is everything that a process is started with.
type settings struct {
	node.Config
	// LogLevel is nil when nobody has chosen one.
	LogLevel *slog.Level
	// AdminSocket is the path of the admin socket, noSocket, or empty for the default.
	AdminSocket string
}

// logLevel is the level of the process's log. A terminal shows what was announced
// and what goes wrong; a file or a collector also gets a line for each request.
func (s *settings) logLevel(terminal bool) slog.Level {
	switch {
	case s.LogLevel != nil:
		return *s.LogLevel
	case terminal:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// setLogLevel reads the name of a level.
func (s *settings) setLogLevel(name string) error {
	s.LogLevel = new(slog.Level)
	if err := s.LogLevel.UnmarshalText([]byte(name)); err != nil {
		return fmt.Errorf("%q is not one of debug, info, warn, error", name)
	}
	return nil
}

func defaultSettings() settings {
	s := settings{Config: node.Defaults()}
	s.AutoThresholds = true
	return s
}

// fileConfig is the YAML file. A key that is absent keeps its default.
type fileConfig struct {
	Listen         *string               `yaml:"listen"`
	AllowHosts     []string              `yaml:"allow_hosts"`
	AllowOrigins   []string              `yaml:"allow_origins"`
	LogLevel       *levelName            `yaml:"log_level"`
	PageSize       *int                  `yaml:"page_size"`
	KVTokens       *int                  `yaml:"kv_tokens"`
	Device         *string               `yaml:"device"`
	GPUs           []int                 `yaml:"gpus"`
	GPUMemory      *byteSize             `yaml:"gpu_memory"`
	MemoryShare    *float64              `yaml:"gpu_memory_share"`
	MaxRows        *int                  `yaml:"max_rows"`
	MaxQueue       *int                  `yaml:"max_queue"`
	ChunkTokens    *int                  `yaml:"chunk_tokens"`
	Schedule       *schedule.Rule        `yaml:"schedule"`
	Lookahead      *subservice.Lookahead `yaml:"lookahead"`
	Reproducible   *bool                 `yaml:"reproducible"`
	Workers        *int                  `yaml:"workers"`
	AdminSocket    *string               `yaml:"admin_socket"`
	AutoThresholds *bool                 `yaml:"auto_thresholds"`
	DrainTimeout   *time.Duration        `yaml:"drain_timeout"`
	HangAfter      *time.Duration        `yaml:"hang_after"`
	Models         []fileModel           `yaml:"models"`
	Deployments    *[]fileDeployment     `yaml:"deployments"`
}

type fileModel struct {
	Name        string   `yaml:"name"`
	Dir         string   `yaml:"dir"`
	Threshold   *int     `yaml:"threshold"`
	LongestWait waitTime `yaml:"longest_wait"`
	Replicas    int      `yaml:"replicas"`
	// Load is dummy:SEED for a shape filled with a hash.
	Load *loadFrom `yaml:"load"`
}

type fileDeployment struct {
	Name   string     `yaml:"name"`
	Models []string   `yaml:"models"`
	Policy filePolicy `yaml:"policy"`
	// AllowPolicyOverride lets requests change policy, threshold and large share.
	AllowPolicyOverride bool `yaml:"allow_policy_override"`
	// SpecialMap has, by model, pairs ENTRY=OTHER of tokens that mean the same.
	SpecialMap map[string][]string `yaml:"special_map"`
}

type filePolicy struct {
	Name            string    `yaml:"name"`
	Threshold       *float64  `yaml:"threshold"`
	Weights         []float64 `yaml:"weights"`
	Trace           string    `yaml:"trace"`
	Router          string    `yaml:"router"`
	RouterThreshold *float64  `yaml:"router_threshold"`
	Mode            string    `yaml:"mode"`
	Warmup          int       `yaml:"warmup"`
	WarmupShape     string    `yaml:"warmup_shape"`
	Epistemic       *float64  `yaml:"epistemic"`
	Entropy         *float64  `yaml:"entropy"`
	StepTokens      int       `yaml:"step_tokens"`
	ThinkTokens     int       `yaml:"think_tokens"`
	Rule            string    `yaml:"rule"`
	ReturnRule      string    `yaml:"return_rule"`
}

// waitTime is a longest wait: a duration, or auto (zero).
type waitTime time.Duration

// UnmarshalText accepts "auto" or a positive duration such as 50ms.
func (w *waitTime) UnmarshalText(text []byte) error {
	if string(text) == "auto" {
		*w = 0
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d <= 0 {
		return fmt.Errorf("longest wait %q is neither auto nor a positive duration such as 50ms", text)
	}
	*w = waitTime(d)
	return nil
}

// readConfig reads a configuration file over the defaults. A relative model
// directory is relative to the file.
func readConfig(path string) (settings, error) {
	s := defaultSettings()
	stat, err := os.Stat(path)
	if err != nil {
		return s, &usageError{fmt.Errorf("read configuration: %w", err)}
	}
	if stat.Size() > maxConfigBytes {
		return s, usagef("read configuration: %s has %d bytes, the limit is %d", path, stat.Size(), maxConfigBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return s, &usageError{fmt.Errorf("read configuration: %w", err)}
	}
	if err := parseConfig(text, filepath.Dir(path), &s); err != nil {
		return s, &usageError{fmt.Errorf("%s: %w", path, err)}
	}
	return s, nil
}

// parseConfig decodes text over s; dir is what relative paths start from.
func parseConfig(text []byte, dir string, s *settings) error {
	if err := checkKinds(text); err != nil {
		return err
	}
	var f fileConfig
	documents := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := documents.Decode(&f); err != nil && err != io.EOF {
		return withSuggestion(err)
	}
	var more any
	if documents.Decode(&more) == nil && more != nil {
		return errors.New("there is more than one document (a line ---); one is expected")
	}
	overwrite(&s.Listen, f.Listen)
	s.AllowHosts, s.AllowOrigins = f.AllowHosts, f.AllowOrigins
	overwrite(&s.PageSize, f.PageSize)
	overwrite(&s.KVTokens, f.KVTokens)
	overwrite(&s.Device, f.Device)
	overwrite(&s.MemoryShare, f.MemoryShare)
	if f.GPUMemory != nil {
		s.GPUMemory = int64(*f.GPUMemory)
	}
	if f.GPUs != nil {
		s.GPUs = f.GPUs
	}
	overwrite(&s.MaxRows, f.MaxRows)
	overwrite(&s.MaxQueue, f.MaxQueue)
	overwrite(&s.ChunkTokens, f.ChunkTokens)
	overwrite(&s.Workers, f.Workers)
	overwrite(&s.Schedule, f.Schedule)
	overwrite(&s.Lookahead, f.Lookahead)
	overwrite(&s.Reproducible, f.Reproducible)
	overwrite(&s.DrainTimeout, f.DrainTimeout)
	overwrite(&s.HangAfter, f.HangAfter)
	overwrite(&s.AdminSocket, f.AdminSocket)
	if f.LogLevel != nil {
		if err := s.setLogLevel(string(*f.LogLevel)); err != nil {
			return fmt.Errorf("log_level: %w", err)
		}
	}
	if f.Models != nil {
		s.Models = nil
		for _, m := range f.Models {
			s.Models = append(s.Models, m.model(dir))
			if m.Threshold != nil {
				s.AutoThresholds = false
			}
		}
		s.Deployments = deploymentOf(s.Models, "")
	}
	overwrite(&s.AutoThresholds, f.AutoThresholds)
	if f.Deployments != nil {
		s.Deployments = nil
		for _, d := range *f.Deployments {
			s.Deployments = append(s.Deployments, node.Deployment{
				Name: d.Name, Models: d.Models, Policy: d.Policy.policy(s.Models, dir), AllowOverride: d.AllowPolicyOverride, SpecialMap: d.SpecialMap,
			})
		}
	}
	return nil
}

func (m *fileModel) model(dir string) node.Model {
	out := node.Model{Name: m.Name, Dir: m.Dir, Threshold: 1, LongestWait: time.Duration(m.LongestWait), Replicas: m.Replicas, Dummy: m.Load.dummy()}
	overwrite(&out.Threshold, m.Threshold)
	if out.Dir != "" && !filepath.IsAbs(out.Dir) {
		out.Dir = filepath.Join(dir, out.Dir)
	}
	return out
}

func (p *filePolicy) policy(models []node.Model, dir string) node.Policy {
	name := p.Name
	if name == "" {
		name = "r-stitch"
	}
	out := defaultPolicy(name, models)
	if p.Threshold != nil {
		out.Threshold = p.Threshold
	}
	out.Weights, out.Trace = p.Weights, p.Trace
	out.Router, out.RouterThreshold = p.Router, p.RouterThreshold
	if strings.ContainsRune(out.Router, filepath.Separator) && !filepath.IsAbs(out.Router) {
		out.Router = filepath.Join(dir, out.Router) // a file, not an embedded one's name
	}
	out.Mode, out.Warmup, out.WarmupShape = p.Mode, p.Warmup, p.WarmupShape
	out.Epistemic, out.Entropy = p.Epistemic, p.Entropy
	out.StepTokens, out.ThinkTokens = p.StepTokens, p.ThinkTokens
	out.Rule, out.ReturnRule = p.Rule, p.ReturnRule
	return out
}

// overwrite sets *to where from has a value.
func overwrite[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// deploymentOf is the deployment that a list of models means: the first is the
// entry model, r-stitch decides. One model is served alone, without a deployment.
func deploymentOf(models []node.Model, name string) []node.Deployment {
	if len(models) < 2 {
		return nil
	}
	d := node.Deployment{Name: name, Policy: defaultPolicy("r-stitch", models)}
	for _, m := range models {
		d.Models = append(d.Models, m.Name)
	}
	if name == "" {
		d.Name = "default"
		if embedded(models) {
			d.Name = "tiny"
		}
	}
	return []node.Deployment{d}
}

// defaultPolicy is a policy with the threshold that suits the models: the
// embedded trio has its own for r-stitch, else the policy's own default counts.
func defaultPolicy(name string, models []node.Model) node.Policy {
	p := node.Policy{Name: name}
	if embedded(models) {
		p.Threshold = engine.TrioThreshold(name)
	}
	return p
}

// embedded says that all models are embedded ones.
func embedded(list []node.Model) bool {
	return !slices.ContainsFunc(list, func(m node.Model) bool { return m.Dir != "" || !slices.Contains(models.Names(), m.Name) })
}

// withSuggestion is suggest for a configuration file.
func withSuggestion(err error) error {
	return suggest(err, reflect.TypeFor[fileConfig](), "deploy/config/r-stitch/tiny.yaml")
}

// suggest adds the nearest known key of a file's type to an unknown-key error, which
// already has line, column and the source. example is a file that describes the keys.
func suggest(err error, file reflect.Type, example string) error {
	var unknown *yaml.UnknownFieldError
	if !errors.As(err, &unknown) || unknown.Token == nil {
		return err
	}
	key := unknown.Token.Value
	var keys, places []string
	for _, path := range configPaths(file, "", nil) {
		last := path[strings.LastIndexByte(path, '.')+1:]
		keys = append(keys, last)
		if last == key {
			places = append(places, path)
		}
	}
	meant := near.Word(key, keys)
	switch {
	case places != nil:
		return fmt.Errorf("%w\nIts place is %s", err, strings.Join(places, " or "))
	case meant == "":
		return fmt.Errorf("%w\n(the keys are described in %s)", err, example)
	}
	return fmt.Errorf("%w\nDid you mean %q?", err, meant)
}

// configPaths collects the paths of the YAML keys of t and of the structs in
// it, such as models[].name.
func configPaths(t reflect.Type, prefix string, paths []string) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice && prefix != "" {
			prefix = strings.TrimSuffix(prefix, ".") + "[]."
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return paths
	}
	for f := range t.Fields() {
		path := prefix + f.Tag.Get("yaml")
		paths = append(paths, path)
		paths = configPaths(f.Type, path+".", paths)
	}
	return paths
}
