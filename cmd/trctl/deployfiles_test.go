package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// unitEntry is one line of a systemd unit.
type unitEntry struct{ section, key, value string }

// unitKeys are the directives that our units use. Another one is probably misspelt:
// systemd would only warn of it.
var unitKeys = map[string][]string{
	"Unit":    {"Description", "Wants", "After", "StartLimitIntervalSec"},
	"Install": {"WantedBy"},
	"Service": {
		"Type", "EnvironmentFile", "Environment", "LoadCredential", "ExecStart", "StandardOutput", "KillSignal", "KillMode", "TimeoutStopSec",
		"Restart", "RestartSec", "RestartPreventExitStatus", "DynamicUser", "StateDirectory", "StateDirectoryMode", "RuntimeDirectory",
		"RuntimeDirectoryMode", "CacheDirectory", "UMask", "LimitNOFILE", "LimitCORE", "LimitMEMLOCK", "ProtectSystem", "ProtectHome",
		"ProtectProc", "ProtectClock", "ProtectHostname", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs",
		"ProtectControlGroups", "PrivateDevices", "PrivateTmp", "NoNewPrivileges", "CapabilityBoundingSet", "AmbientCapabilities",
		"RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality", "MemoryDenyWriteExecute",
		"SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber",
	},
}

// parseUnit reads a unit as strictly as it can be meant.
func parseUnit(t *testing.T, file string) (out []unitEntry) {
	t.Helper()
	section := ""
	text := regexp.MustCompile(`\\\n\s*`).ReplaceAllString(readFile(t, file), " ")
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
			if unitKeys[section] == nil {
				t.Errorf("%s: section %s", file, section)
			}
		default:
			key, value, ok := strings.Cut(line, "=")
			if !ok || !slices.Contains(unitKeys[section], key) {
				t.Errorf("%s: [%s] %s", file, section, line)
			}
			out = append(out, unitEntry{section, key, value})
		}
	}
	return out
}

// Units give a drain the time that the process may take for it, and restart after a
// failure; those of a worker leave the GPU alone.
func TestUnits(t *testing.T) {
	files, err := filepath.Glob(deployRoot + "/systemd/*.service")
	if err != nil || len(files) != 3 {
		t.Fatalf("%d units, %v", len(files), err)
	}
	for _, file := range files {
		values := map[string]string{}
		for _, e := range parseUnit(t, file) {
			values[e.key] = e.value
		}
		for key, want := range map[string]string{
			"Restart": "on-failure", "KillSignal": "SIGTERM", "KillMode": "mixed", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "WantedBy": "multi-user.target",
		} {
			if values[key] != want {
				t.Errorf("%s: %s=%s, want %s", file, key, values[key], want)
			}
		}
		if !strings.HasPrefix(values["LoadCredential"], "token:") {
			t.Errorf("%s: the token is no credential", file)
		}
		stop, err := strconv.Atoi(strings.TrimSuffix(values["TimeoutStopSec"], "s"))
		if err != nil || stop < 20 {
			t.Errorf("%s: TimeoutStopSec=%s", file, values["TimeoutStopSec"])
		}
		if drain := regexp.MustCompile(`--drain-timeout (\d+)s`).FindStringSubmatch(values["ExecStart"]); drain != nil {
			if d, _ := strconv.Atoi(drain[1]); d >= stop {
				t.Errorf("%s: it is killed after %d s, but may drain for %d s", file, stop, d)
			}
		}
		if !strings.Contains(file, "worker") {
			continue
		}
		for _, key := range []string{"DevicePolicy", "DeviceAllow", "ProcSubset", "MemoryDenyWriteExecute", "SystemCallFilter"} {
			if _, set := values[key]; set {
				t.Errorf("%s: %s breaks GPUs", file, key)
			}
		}
		for _, key := range []string{"PrivateDevices", "ProtectClock"} {
			if values[key] != "no" {
				t.Errorf("%s: %s=%s breaks GPUs", file, key, values[key])
			}
		}
	}
}

// program finds a program that may be absent, and skips the test then.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if path, err = exec.LookPath("/usr/sbin/" + name); err != nil {
		t.Skipf("%s is not on this machine", name)
	}
	return path
}

// checkScript has the shell read a script without running it.
func checkScript(t *testing.T, at, script string) {
	t.Helper()
	path, err := exec.LookPath("bash")
	if err != nil {
		t.Logf("%s: its script is not checked, bash is not on this machine", at)
		return
	}
	c := exec.Command(path, "-n")
	c.Stdin = strings.NewReader(script)
	if said, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", at, err, said)
	}
}

func TestSystemdVerifiesUnits(t *testing.T) {
	analyze := program(t, "systemd-analyze")
	dir := t.TempDir()
	args := []string{"verify", "--man=no"}
	for _, name := range []string{"trctl-control.service", "trctl-gateway.service", "trctl-worker.service", "trctl-control.service.d/first.conf"} {
		// The program need not be installed.
		text := strings.ReplaceAll(readFile(t, deployRoot+"/systemd/"+name), "/usr/local/bin/trctl", "/bin/true")
		writeTo(t, filepath.Join(dir, name), text)
		if strings.HasSuffix(name, ".service") {
			args = append(args, filepath.Join(dir, name))
		}
	}
	said, err := exec.Command(analyze, args...).CombinedOutput()
	for _, line := range strings.Split(string(said), "\n") {
		if strings.Contains(line, "trctl-") {
			t.Error(line)
		}
	}
	if err != nil && !t.Failed() {
		t.Skipf("systemd-analyze does not work here: %v\n%s", err, said)
	}
}

func writeTo(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pem makes a certificate for a proxy to load.
func pem(t *testing.T, dir string) (certificate, key, both string) {
	t.Helper()
	openssl := program(t, "openssl")
	certificate, key, both = filepath.Join(dir, "c.crt"), filepath.Join(dir, "c.key"), filepath.Join(dir, "both", "c.pem")
	said, err := exec.Command(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
		"-subj", "/CN=api.example.org", "-keyout", key, "-out", certificate).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl: %v\n%s", err, said)
	}
	writeTo(t, both, readFile(t, certificate)+readFile(t, key))
	return certificate, key, both
}

func TestHAProxyTakesItsConfiguration(t *testing.T) {
	haproxy, dir := program(t, "haproxy"), t.TempDir()
	_, _, both := pem(t, dir)
	file := filepath.Join(dir, "haproxy.cfg")
	writeTo(t, file, strings.ReplaceAll(readFile(t, deployRoot+"/proxy/haproxy.cfg"), "/etc/haproxy/certs/", filepath.Dir(both)+"/"))
	if said, err := exec.Command(haproxy, "-c", "-f", file).CombinedOutput(); err != nil || strings.Contains(string(said), "WARNING") {
		t.Errorf("haproxy: %v\n%s", err, said)
	}
}

func TestNginxTakesItsConfiguration(t *testing.T) {
	nginx, dir := program(t, "nginx"), t.TempDir()
	certificate, key, _ := pem(t, dir)
	text := "events {}\npid " + dir + "/pid;\nerror_log " + dir + "/log;\nhttp {\naccess_log off;\n"
	for i, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += kind + "_temp_path " + dir + "/t" + strconv.Itoa(i) + ";\n"
	}
	text += strings.NewReplacer("/etc/nginx/tls/api.crt", certificate, "/etc/nginx/tls/api.key", key).Replace(readFile(t, deployRoot+"/proxy/nginx.conf")) + "}\n"
	file := filepath.Join(dir, "nginx.conf")
	writeTo(t, file, text)
	if said, err := exec.Command(nginx, "-t", "-c", file).CombinedOutput(); err != nil {
		t.Errorf("nginx: %v\n%s", err, said)
	}
}

// What proxies must be told for streams, in case they cannot be asked themselves.
func TestProxiesLetStreamsThrough(t *testing.T) {
	for file, wants := range map[string][]string{
		"haproxy.cfg": {"option http-no-delay", "timeout server 31m", "timeout client 31m", "uri /readyz", "alpn h2,http/1.1", "balance leastconn"},
		"nginx.conf":  {"proxy_buffering off;", "proxy_cache off;", "gzip off;", "proxy_http_version 1.1;", "proxy_read_timeout 31m;", "http2", "keepalive "},
	} {
		text := readFile(t, deployRoot+"/proxy/"+file)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q", file, want)
			}
		}
	}
}

func TestCompose(t *testing.T) {
	file := deployRoot + "/compose.yaml"
	c := readCompose(t, file)
	roles := map[string]int{}
	for name, s := range c.Services {
		if len(s.Command) > 0 && len(s.Entrypoint) == 0 {
			roles[s.Command[0]]++
		}
		for on := range s.DependsOn {
			if _, ok := c.Services[on]; !ok {
				t.Errorf("%s depends on %s, which is not there", name, on)
			}
		}
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			if _, ok := c.Volumes[from]; !ok {
				t.Errorf("%s: volume %s is not declared", name, from)
			}
		}
	}
	if roles["cluster"] != 1 || roles["gateway"] != 2 || roles["worker"] != 2 {
		t.Errorf("services by role: %v", roles)
	}
	docker := program(t, "docker")
	if exec.Command(docker, "compose", "version").Run() != nil {
		t.Skip("docker has no compose here")
	}
	if said, err := exec.Command(docker, "compose", "-f", file, "config", "--quiet").CombinedOutput(); err != nil {
		t.Errorf("docker compose: %v\n%s", err, said)
	}
}

// What Kubernetes objects name is there: labels, ports, volumes, keys of the Secret.
func TestKubernetes(t *testing.T) {
	files, err := filepath.Glob(deployRoot + "/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	names := map[string]kubernetesObject{} // by kind/name
	for _, file := range files {
		for _, o := range readKubernetes(t, file) {
			if o.APIVersion == "" || o.Kind == "" || o.Metadata.Name == "" && o.Kind != "Kustomization" {
				t.Errorf("%s: an object is incomplete: %s %s %s", file, o.APIVersion, o.Kind, o.Metadata.Name)
			}
			at := o.Kind + "/" + o.Metadata.Name
			if _, twice := names[at]; twice {
				t.Errorf("%s: %s is there twice", file, at)
			}
			names[at] = o
		}
	}
	for _, want := range []string{"StatefulSet/trctl-control", "Deployment/trctl-gateway", "StatefulSet/trctl-worker", "Service/trctl", "Secret/trctl-tokens"} {
		if _, ok := names[want]; !ok {
			t.Errorf("there is no %s", want)
		}
	}
	for at, o := range names {
		if o.Kind == "StatefulSet" || o.Kind == "Deployment" {
			checkWorkload(t, at, &o, names)
		}
	}
	if n := names["StatefulSet/trctl-control"].Spec.Replicas; n != 3 {
		t.Errorf("%d control nodes", n)
	}
	for _, c := range names["StatefulSet/trctl-worker"].Spec.Template.Spec.Containers {
		if c.Resources.Limits["nvidia.com/gpu"] == nil {
			t.Error("workers ask for no GPU")
		}
	}
}

func checkWorkload(t *testing.T, at string, o *kubernetesObject, all map[string]kubernetesObject) {
	t.Helper()
	pod := &o.Spec.Template
	match, _ := o.Spec.Selector["matchLabels"].(map[string]any)
	for k, v := range match {
		if pod.Metadata.Labels[k] != v {
			t.Errorf("%s selects %s=%v, its pods have %v", at, k, v, pod.Metadata.Labels)
		}
	}
	if _, ok := all["Service/"+o.Spec.ServiceName]; !ok && o.Kind == "StatefulSet" {
		t.Errorf("%s: there is no service %s", at, o.Spec.ServiceName)
	}
	var volumes []string
	for _, v := range pod.Spec.Volumes {
		volumes = append(volumes, v.Name)
		for _, item := range v.Secret.Items {
			if _, ok := all["Secret/"+v.Secret.SecretName].StringData[item.Key]; !ok {
				t.Errorf("%s: Secret %s has no %s", at, v.Secret.SecretName, item.Key)
			}
		}
	}
	for _, v := range o.Spec.Claims {
		volumes = append(volumes, v.Metadata.Name)
	}
	for _, c := range pod.Spec.Containers {
		var ports []string
		for _, p := range c.Ports {
			ports = append(ports, p.Name)
		}
		for _, p := range []kubernetesProbe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if p.HTTPGet.Path == "" || !slices.Contains(ports, p.HTTPGet.Port) {
				t.Errorf("%s: a probe asks %q at port %q of %v", at, p.HTTPGet.Path, p.HTTPGet.Port, ports)
			}
		}
		for _, m := range c.VolumeMounts {
			if !slices.Contains(volumes, m.Name) {
				t.Errorf("%s mounts %s of %v", at, m.Name, volumes)
			}
		}
		line := strings.Join(c.Args, " ")
		if drain := regexp.MustCompile(`--drain-timeout=(\d+)s`).FindStringSubmatch(line); drain != nil {
			if d, _ := strconv.Atoi(drain[1]); d+10 >= pod.Spec.Grace {
				t.Errorf("%s is killed after %d s, but may drain for %d s", at, pod.Spec.Grace, d)
			}
		}
	}
}

func TestKustomizeBuilds(t *testing.T) {
	kubectl := program(t, "kubectl")
	if said, err := exec.Command(kubectl, "kustomize", deployRoot+"/kubernetes").CombinedOutput(); err != nil {
		t.Errorf("kubectl kustomize: %v\n%s", err, said)
	}
}
