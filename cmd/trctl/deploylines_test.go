package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// deployRoot has the files that run trctl elsewhere.
const deployRoot = "../../deploy"

// deployedLine is a trctl command in a file of deploy, or in a document.
type deployedLine struct {
	file string
	args []string // without trctl
}

// Every trctl command line in deploy and in the documents is one that the program
// understands: its commands and flags exist.
func TestCommandLinesOfDeployAndDocuments(t *testing.T) {
	var lines []deployedLine
	for pattern, read := range map[string]func(*testing.T, string) []deployedLine{
		"systemd/*.service":     unitLines,
		"systemd/*/*.conf":      unitLines,
		"Dockerfile":            dockerfileLines,
		"compose.yaml":          composeLines,
		"kubernetes/*.yaml":     kubernetesLines,
		"../README.md":          documentLines,
		"../docs/operations.md": documentLines,
	} {
		files, err := filepath.Glob(filepath.Join(deployRoot, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			found := read(t, file)
			lines = append(lines, found...)
		}
	}
	if len(lines) < 20 {
		t.Errorf("only %d command lines were found", len(lines))
	}
	for _, line := range lines {
		parser, err := newParser(new(cli), process{in: os.Stdin, out: io.Discard, err: io.Discard})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(line.args); err != nil {
			t.Errorf("%s: trctl %s: %v", line.file, strings.Join(line.args, " "), err)
		}
	}
}

// inText matches a command in a shell script, a comment or a document. What comes
// before it must end a word; a flag's value or a path is no command.
var inText = regexp.MustCompile("(?m)(?:^|[\\s(;&|$])trctl ((?:cluster|gateway|worker|key|serve|chat|apply|get|describe|delete|drain|undrain|doctor|trace) ?[^\\n`]*)")

// textLines finds commands in a text, with lines that go on after a backslash joined.
func textLines(file, text string) (out []deployedLine) {
	text = regexp.MustCompile(`\\\n[# \t]*`).ReplaceAllString(text, " ")
	for _, m := range inText.FindAllStringSubmatch(text, -1) {
		if args := shellWords(m[1]); len(args) > 0 {
			out = append(out, deployedLine{file, args})
		}
	}
	return out
}

// shellWords splits a command line up to where the shell ends it. It knows quotes, and
// leaves variables as they are.
func shellWords(line string) (out []string) {
	var word strings.Builder
	quote, open := rune(0), false
	end := func() {
		if open {
			out = append(out, word.String())
		}
		word.Reset()
		open = false
	}
	for _, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '\'' || c == '"':
			quote, open = c, true
		case c == ' ' || c == '\t':
			end()
		case strings.ContainsRune(";|&)<>#", c) && !(c == '#' && open):
			if n := word.String(); c == '>' && (n == "1" || n == "2") {
				open = false // 2>file
			}
			end()
			return out
		default:
			open = true
			word.WriteRune(c)
		}
	}
	end()
	return out
}

func TestShellWords(t *testing.T) {
	for line, want := range map[string]string{
		`get nodes -w; exit`:                  "get|nodes|-w",
		`key create --name "a b" 2>/dev/null`: "key|create|--name|a b",
		`serve --listen ':8000' # all`:        "serve|--listen|:8000",
		`status "$@")`:                        "status|$@",
		``:                                    "",
	} {
		if got := strings.Join(shellWords(line), "|"); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unitLines are the commands that a unit starts, with the variables that its head
// shows, and those in comments.
func unitLines(t *testing.T, file string) (out []deployedLine) {
	t.Helper()
	text := readFile(t, file)
	shown := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^#\s+([A-Z_]+)=(.*)$`).FindAllStringSubmatch(text, -1) {
		shown[m[1]] = m[2]
	}
	for _, e := range parseUnit(t, file) {
		if e.key != "ExecStart" || e.value == "" {
			continue
		}
		var args []string
		for _, word := range strings.Fields(e.value) {
			if name, ok := strings.CutPrefix(word, "$"); ok && !strings.HasPrefix(name, "{") {
				if shown[name] == "" {
					t.Errorf("%s: no comment shows what %s may be", file, word)
				}
				args = append(args, strings.Fields(shown[name])...)
				continue
			}
			args = append(args, word)
		}
		if args[0] != "/usr/local/bin/trctl" {
			t.Errorf("%s: starts %s", file, args[0])
			continue
		}
		out = append(out, deployedLine{file, args[1:]})
	}
	if len(out) == 0 {
		t.Errorf("%s starts nothing", file)
	}
	return append(out, textLines(file, comments(text))...)
}

// comments are the lines of a file that begin with #.
func comments(text string) string {
	return strings.Join(regexp.MustCompile(`(?m)^#.*$`).FindAllString(text, -1), "\n")
}

func dockerfileLines(t *testing.T, file string) (out []deployedLine) {
	t.Helper()
	text := readFile(t, file)
	var entry, command []string
	for _, m := range regexp.MustCompile(`(?m)^(ENTRYPOINT|CMD) (.*)$`).FindAllStringSubmatch(text, -1) {
		var words []string
		if err := json.Unmarshal([]byte(m[2]), &words); err != nil {
			t.Fatalf("%s: %s: %v", file, m[0], err)
		}
		if m[1] == "ENTRYPOINT" {
			entry = words
		} else {
			command = words
		}
	}
	if len(entry) != 1 || entry[0] != "trctl" {
		t.Errorf("%s: the entry point is %v", file, entry)
	}
	out = append(out, deployedLine{file, command})
	// docker run … IMAGE ARGUMENT…
	joined := regexp.MustCompile(`\\\n[# \t]*`).ReplaceAllString(comments(text), " ")
	return append(out, textLines(file, strings.ReplaceAll(joined, "8000 trctl\n", "8000\n"))...)
}

// composeService is what of a service matters here.
type composeService struct {
	Entrypoint  []string `yaml:"entrypoint"`
	Command     []string `yaml:"command"`
	Volumes     []string `yaml:"volumes"`
	DependsOn   map[string]struct{ Condition string }
	Healthcheck struct{ Test []string }
}

type composeFile struct {
	Services map[string]composeService `yaml:"services"`
	Volumes  map[string]any            `yaml:"volumes"`
}

func readCompose(t *testing.T, file string) (out composeFile) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readFile(t, file)), &out); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return out
}

func composeLines(t *testing.T, file string) (out []deployedLine) {
	t.Helper()
	for name, s := range readCompose(t, file).Services {
		at := file + " " + name
		out = append(out, containerLines(t, at, s.Entrypoint, s.Command)...)
		if test := s.Healthcheck.Test; len(test) > 1 && test[1] == "trctl" {
			out = append(out, deployedLine{at, test[2:]})
		}
	}
	return append(out, textLines(file, comments(readFile(t, file)))...)
}

// containerLines are what a container runs: trctl, or a shell's script.
func containerLines(t *testing.T, at string, entry, args []string) []deployedLine {
	t.Helper()
	if len(entry) == 0 || entry[0] == "trctl" {
		return []deployedLine{{at, args}}
	}
	if entry[0] != "bash" || len(args) != 1 {
		t.Errorf("%s runs %v %v", at, entry, args)
		return nil
	}
	script := strings.ReplaceAll(args[0], "$$", "$")
	checkScript(t, at, script)
	out := textLines(at, script)
	if len(out) == 0 {
		t.Errorf("%s: no command in its script", at)
	}
	return out
}

// kubernetesObject is what of an object matters here.
type kubernetesObject struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
	StringData map[string]string `yaml:"stringData"`
	Spec       struct {
		Replicas    int               `yaml:"replicas"`
		ServiceName string            `yaml:"serviceName"`
		Selector    map[string]any    `yaml:"selector"`
		Template    kubernetesPod     `yaml:"template"`
		Claims      []kubernetesNamed `yaml:"volumeClaimTemplates"`
	} `yaml:"spec"`
}

type kubernetesNamed struct {
	Metadata struct {
		Name string `yaml:"name"`
	} `yaml:"metadata"`
}

type kubernetesPod struct {
	Metadata struct {
		Labels map[string]string `yaml:"labels"`
	} `yaml:"metadata"`
	Spec struct {
		Grace      int                   `yaml:"terminationGracePeriodSeconds"`
		Containers []kubernetesContainer `yaml:"containers"`
		Volumes    []kubernetesVolume    `yaml:"volumes"`
	} `yaml:"spec"`
}

type kubernetesVolume struct {
	Name   string `yaml:"name"`
	Secret struct {
		SecretName string                       `yaml:"secretName"`
		Items      []struct{ Key, Path string } `yaml:"items"`
	} `yaml:"secret"`
}

type kubernetesContainer struct {
	Name, Image   string
	Command, Args []string
	Ports         []struct {
		Name          string `yaml:"name"`
		ContainerPort int    `yaml:"containerPort"`
	} `yaml:"ports"`
	StartupProbe   kubernetesProbe `yaml:"startupProbe"`
	LivenessProbe  kubernetesProbe `yaml:"livenessProbe"`
	ReadinessProbe kubernetesProbe `yaml:"readinessProbe"`
	VolumeMounts   []struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
	Resources struct {
		Limits map[string]any `yaml:"limits"`
	} `yaml:"resources"`
}

type kubernetesProbe struct {
	HTTPGet struct {
		Path string `yaml:"path"`
		Port string `yaml:"port"`
	} `yaml:"httpGet"`
}

func readKubernetes(t *testing.T, file string) (out []kubernetesObject) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(readFile(t, file)))
	for {
		var o kubernetesObject
		err := d.Decode(&o)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, o)
	}
}

func kubernetesLines(t *testing.T, file string) (out []deployedLine) {
	t.Helper()
	for _, o := range readKubernetes(t, file) {
		for _, c := range o.Spec.Template.Spec.Containers {
			out = append(out, containerLines(t, file+" "+o.Metadata.Name, c.Command, c.Args)...)
		}
	}
	return append(out, textLines(file, comments(readFile(t, file)))...)
}

// documentLines are the commands in the shell blocks of a document, and in its text.
func documentLines(t *testing.T, file string) (out []deployedLine) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(readFile(t, file), -1) {
		out = append(out, textLines(file, m[1])...)
	}
	return out
}
