package hub

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const commit = "0123456789abcdef0123456789abcdef01234567"

// fakeHub is a hub with one model, whose large files stand on a second server.
type fakeHub struct {
	t        *testing.T
	hub, cdn *httptest.Server
	files    map[string]string
	token    string

	mu    sync.Mutex
	gets  []string                                                              // file and range of each request for a large file
	fault func(n int, w http.ResponseWriter, r *http.Request, body string) bool // n counts these requests
	leaks []string
}

func newFakeHub(t *testing.T) *fakeHub {
	h := &fakeHub{t: t, files: map[string]string{
		"config.json": `{"architectures":["LlamaForCausalLM"]}`, "tokenizer.json": "{}", "README.md": "no", "model.safetensors": strings.Repeat("0123456789", 500), "sub/model.safetensors": "no",
	}}
	h.cdn = httptest.NewServer(http.HandlerFunc(h.serveLarge))
	mux := http.NewServeMux()
	mux.HandleFunc("/api/models/org/name/revision/{rev}", h.serveListing)
	mux.HandleFunc("/org/name/resolve/"+commit+"/{file}", h.serveFile)
	h.hub = httptest.NewServer(mux)
	t.Cleanup(h.hub.Close)
	t.Cleanup(h.cdn.Close)
	return h
}

func (h *fakeHub) serveListing(w http.ResponseWriter, r *http.Request) {
	if h.token != "" && r.Header.Get("Authorization") != "Bearer "+h.token {
		w.Header().Set("X-Error-Message", "Access to model org/name is restricted.")
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if rev := r.PathValue("rev"); rev != "main" && rev != "refs/pr/1" {
		http.NotFound(w, r)
		return
	}
	type lfs struct {
		SHA256 string `json:"sha256"`
		Size   int    `json:"size"`
	}
	var siblings []map[string]any
	for name, body := range h.files {
		s := map[string]any{"rfilename": name, "size": len(body), "blobId": gitID(body)}
		if strings.HasSuffix(name, ".safetensors") {
			s["lfs"] = lfs{digest(body), len(body)}
		}
		siblings = append(siblings, s)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"sha": commit, "siblings": siblings})
}

func gitID(body string) string {
	s := sha1.Sum([]byte(fmt.Sprintf("blob %d\x00%s", len(body), body)))
	return hex.EncodeToString(s[:])
}

func digest(body string) string {
	s := sha256.Sum256([]byte(body))
	return hex.EncodeToString(s[:])
}

func (h *fakeHub) serveFile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	if strings.HasSuffix(name, ".safetensors") {
		http.Redirect(w, r, h.cdn.URL+"/"+name+"?signature=secret", http.StatusFound)
		return
	}
	_, _ = w.Write([]byte(h.files[name]))
}

func (h *fakeHub) serveLarge(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	if a := r.Header.Get("Authorization"); a != "" {
		h.leaks = append(h.leaks, a)
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	h.gets = append(h.gets, name+" "+r.Header.Get("Range"))
	n, fault := len(h.gets), h.fault
	h.mu.Unlock()
	body := h.files[name]
	if fault != nil && fault(n, w, r, body) {
		return
	}
	http.ServeContent(w, r, name, time.Time{}, strings.NewReader(body))
}

func (h *fakeHub) client(change func(*Config)) *Client {
	cfg := Config{Endpoint: h.hub.URL, AllowPrivate: true, Hosts: []string{h.cdn.Listener.Addr().String()}, RangeBytes: 1000, Tries: 3,
		Backoff: func(int) time.Duration { return 0 }}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(c.Close)
	return c
}

func model(t *testing.T) ID {
	id, err := ParseID("org/name")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func same(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != files[name] {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "README.md")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("README.md was fetched")
	}
}

func TestPull(t *testing.T) {
	for _, plain := range []bool{true, false} {
		h := newFakeHub(t)
		h.token = "hf_x"
		cache, dir := t.TempDir(), ""
		if plain {
			dir = filepath.Join(t.TempDir(), "m")
		}
		var mu sync.Mutex
		seen := map[string]int64{}
		c := h.client(func(cfg *Config) {
			cfg.Token = h.token
			cfg.Progress = func(file string, done, _ int64) { mu.Lock(); seen[file] = max(seen[file], done); mu.Unlock() }
		})
		for round := range 2 {
			p, err := c.Pull(context.Background(), model(t), cache, dir)
			if err != nil {
				t.Fatal(err)
			}
			same(t, p.Dir, h.files)
			if want := 3 * (1 - round); p.Fetched != want || len(p.Files) != 3 || p.Commit != commit {
				t.Errorf("round %d: %+v", round, p)
			}
			for _, f := range p.Files {
				if f.SHA256 != digest(h.files[f.Name]) {
					t.Errorf("%s has SHA-256 %s", f.Name, f.SHA256)
				}
			}
		}
		if len(h.gets) != 5 || len(h.leaks) != 0 || seen["model.safetensors"] != 5000 {
			t.Errorf("requests %v, tokens at the second host %v, progress %v", h.gets, h.leaks, seen)
		}
		if plain {
			continue
		}
		found, err := Find(cache, model(t))
		if err != nil {
			t.Fatal(err)
		}
		same(t, found, h.files)
		if _, err := Find(cache, ID{"org", "other", "main"}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("another model: %v", err)
		}
	}
}

// Files of the same content are one blob in the cache, which is fetched once.
func TestPullEqualFiles(t *testing.T) {
	for range 10 {
		h := newFakeHub(t)
		shard := h.files["model.safetensors"]
		delete(h.files, "model.safetensors")
		h.files["model.safetensors.index.json"] = `{"weight_map":{}}`
		for i := range 8 {
			h.files[fmt.Sprintf("model-%d-of-8.safetensors", i+1)] = shard
		}
		p, err := h.client(func(cfg *Config) { cfg.Files = 8 }).Pull(t.Context(), model(t), t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		if p.Fetched != 4 || len(h.gets) != 5 {
			t.Errorf("%d files were fetched, by requests %v", p.Fetched, h.gets)
		}
		for _, f := range p.Files {
			if got, err := os.ReadFile(filepath.Join(p.Dir, f.Name)); err != nil || string(got) != h.files[f.Name] || f.SHA256 != digest(h.files[f.Name]) {
				t.Errorf("%s: %d bytes, %v", f.Name, len(got), err)
			}
		}
	}
}

func TestFaults(t *testing.T) {
	loop := func(_ int, w http.ResponseWriter, r *http.Request, _ string) bool {
		http.Redirect(w, r, r.URL.String(), http.StatusFound)
		return true
	}
	always := func(status int) func(int, http.ResponseWriter, *http.Request, string) bool {
		return func(_ int, w http.ResponseWriter, _ *http.Request, _ string) bool { w.WriteHeader(status); return true }
	}
	cut := func(n int, w http.ResponseWriter, r *http.Request, body string) bool {
		if n%2 == 0 {
			return false
		}
		var from, to int
		fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(body)))
		w.Header().Set("Content-Length", strconv.Itoa(to-from+1))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write([]byte(body[from : from+(to-from)/3]))
		_ = http.NewResponseController(w).Flush() // else nothing of it leaves
		panic(http.ErrAbortHandler)
	}
	for _, c := range []struct {
		name   string
		fault  func(int, http.ResponseWriter, *http.Request, string) bool
		change func(*Config)
		want   error
	}{
		// Which range meets the cuts is up to chance, so one may meet several of them.
		{"cut in the middle", cut, func(cfg *Config) { cfg.Tries = 30 }, nil},
		{"busy for a while", func(n int, w http.ResponseWriter, _ *http.Request, _ string) bool {
			if n%3 == 0 {
				return false
			}
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}, func(cfg *Config) { cfg.Tries = 30 }, nil},
		{"redirects without end", loop, nil, ErrProtocol},
		{"gone", always(http.StatusNotFound), nil, ErrNotFound},
		{"forbidden", always(http.StatusForbidden), nil, ErrDenied},
		{"teapot", always(http.StatusTeapot), nil, ErrProtocol},
		{"always failing", always(http.StatusBadGateway), nil, errStatus},
		{"no ranges", func(_ int, w http.ResponseWriter, _ *http.Request, body string) bool {
			_, _ = w.Write([]byte(body))
			return true
		}, nil, ErrProtocol},
		{"other bytes", func(_ int, w http.ResponseWriter, r *http.Request, body string) bool {
			http.ServeContent(w, r, "x", time.Time{}, strings.NewReader(strings.ToUpper(strings.Repeat("x", len(body)))))
			return true
		}, nil, ErrDigest},
		{"other host", nil, func(cfg *Config) { cfg.Hosts = nil }, ErrHost},
		{"host by its end", nil, func(cfg *Config) { cfg.Hosts = []string{".0.0.1"} }, nil},
		{"another scheme", func(_ int, w http.ResponseWriter, r *http.Request, _ string) bool {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
			return true
		}, nil, ErrHost},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newFakeHub(t)
			h.fault = c.fault
			dir := t.TempDir()
			_, err := h.client(c.change).Pull(context.Background(), model(t), "", dir)
			var status *statusError
			switch {
			case c.want == nil && err != nil:
				t.Fatal(err)
			case c.want == nil:
				same(t, dir, h.files)
			case c.want == errStatus && !errors.As(err, &status), c.want != errStatus && !errors.Is(err, c.want):
				t.Errorf("error %v, want %v", err, c.want)
			case strings.Contains(err.Error(), "signature"):
				t.Errorf("error %v shows a signed URL", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "model.safetensors")); c.want != nil && err == nil {
				t.Error("the file is there")
			}
		})
	}
}

var errStatus = errors.New("a status")

// TestResume has a first call end in the middle and looks at what a second one asks for.
func TestResume(t *testing.T) {
	h := newFakeHub(t)
	ctx, cancel := context.WithCancel(context.Background())
	h.fault = func(n int, w http.ResponseWriter, r *http.Request, _ string) bool {
		if n == 4 {
			cancel()
		}
		return false
	}
	dir := t.TempDir()
	one := func(cfg *Config) { cfg.Ranges, cfg.Files = 1, 1 }
	if _, err := h.client(one).Pull(ctx, model(t), "", dir); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	h.fault = nil
	before := len(h.gets)
	p, err := h.client(one).Pull(context.Background(), model(t), "", dir)
	if err != nil {
		t.Fatal(err)
	}
	same(t, p.Dir, h.files)
	if again := len(h.gets) - before; again < 1 || again > 2 {
		t.Errorf("%d of 5 ranges were fetched again: %v", again, h.gets)
	}
	// A list that belongs to another file is of no use.
	path := filepath.Join(dir, "model.safetensors")
	if err := errors.Join(os.Rename(path, path+".incomplete"), os.WriteFile(path+".ranges", []byte("other 5000 1000\n0\n1\n2\n3\n4\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	before = len(h.gets)
	if _, err = h.client(one).Pull(context.Background(), model(t), "", dir); err != nil || len(h.gets)-before != 5 {
		t.Errorf("%d ranges, %v", len(h.gets)-before, err)
	}
}

func TestDenied(t *testing.T) {
	h := newFakeHub(t)
	h.token = "right"
	_, err := h.client(func(cfg *Config) { cfg.Token = "wrong" }).Pull(context.Background(), model(t), "", t.TempDir())
	if !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "restricted") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("error %v", err)
	}
	h.token = ""
	if _, err := h.client(nil).Pull(context.Background(), ID{"org", "name", "nope"}, "", t.TempDir()); !errors.Is(err, ErrNotFound) {
		t.Errorf("error %v", err)
	}
	if p, err := h.client(nil).Pull(context.Background(), ID{"org", "name", "refs/pr/1"}, t.TempDir(), ""); err != nil || p.Commit != commit {
		t.Errorf("a revision with a slash: %v", err)
	}
}

// TestAddresses wants nothing dialled but what is public.
func TestAddresses(t *testing.T) {
	for ip, want := range map[string]bool{"93.184.216.34": true, "2606:2800:220:1::1": true, "127.0.0.1": false, "::1": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false,
		"169.254.169.254": false, "fe80::1": false, "fd00::1": false, "100.64.0.1": false, "0.0.0.0": false, "224.0.0.1": false, "::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "64:ff9b::7f00:1": false} {
		if got := public(netip.MustParseAddr(ip)); got != want {
			t.Errorf("%s: public %t", ip, got)
		}
	}
	h := httptest.NewTLSServer(http.NotFoundHandler())
	defer h.Close()
	c, err := New(Config{Endpoint: h.URL, Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.List(context.Background(), model(t)); !errors.Is(err, ErrHost) {
		t.Errorf("loopback: %v", err)
	}
	for _, endpoint := range []string{"http://example.org", "ftp://example.org", "https://", "https://u:p@example.org", "::"} {
		if _, err := New(Config{Endpoint: endpoint}); err == nil {
			t.Errorf("%s: no error", endpoint)
		}
	}
	if _, err := New(Config{Token: "a\nb"}); err == nil {
		t.Error("a token with a line end: no error")
	}
}

func TestListing(t *testing.T) {
	lfs := func(name string) string {
		return fmt.Sprintf(`{"rfilename":%q,"lfs":{"sha256":"%s","size":5}}`, name, digest(name))
	}
	small := func(name string) string {
		return fmt.Sprintf(`{"rfilename":%q,"size":5,"blobId":"%s"}`, name, gitID(name))
	}
	answer := func(siblings ...string) string {
		return `{"sha":"` + commit + `","siblings":[` + strings.Join(siblings, ",") + `]}`
	}
	config := small("config.json")
	for _, c := range []struct {
		name, body, want string
		kind             error
	}{
		{"shards", answer(config, small("model.safetensors.index.json"), lfs("model-00001-of-00002.safetensors"), lfs("model-00002-of-00002.safetensors"), lfs("consolidated.safetensors")),
			"config.json model.safetensors.index.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors", nil},
		{"one file", answer(config, lfs("model.safetensors"), lfs("other.safetensors"), small("../x.json"), lfs("a/../../model.safetensors"), small("chat_template.jinja")), "config.json model.safetensors chat_template.jinja", nil},
		{"pickled", answer(config, lfs("pytorch_model.bin")), "pickled", ErrFormat}, {"gguf", answer(config, lfs("q4.gguf")), "q4.gguf", ErrFormat}, {"nothing", answer(config), "neither", ErrFormat},
		{"no config", answer(lfs("model.safetensors")), "config.json", ErrFormat}, {"no commit", `{"siblings":[]}`, "commit", ErrProtocol}, {"no JSON", "<html>", "", ErrProtocol},
		{"no digest", answer(config, `{"rfilename":"model.safetensors","size":5}`), "digest", ErrProtocol}, {"negative size", answer(config, `{"rfilename":"model.safetensors","size":-5,"blobId":"`+gitID("")+`"}`), "digest", ErrProtocol},
		{"bad digest", answer(config, `{"rfilename":"model.safetensors","lfs":{"sha256":"../../x","size":5}}`), "digest", ErrProtocol},
	} {
		l, err := parseListing([]byte(c.body))
		if !errors.Is(err, c.kind) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v", c.name, err)
		}
		if err != nil {
			continue
		}
		var names []string
		for _, f := range l.Files {
			names = append(names, f.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: files %s", c.name, got)
		}
	}
}

func TestParseID(t *testing.T) {
	for s, want := range map[string]string{"a/b": "a/b@main", "Qwen/Qwen3-0.6B@v1.0": "Qwen/Qwen3-0.6B@v1.0", "a/b@refs/pr/1": "a/b@refs/pr/1", "a": "", "a/": "", "/b": "", "a/b/c": "", "../b": "", "a/..": "", "a/b@": "", "a/b@../x": "",
		"a b/c": "", "a/b@x y": "", "a--b/c": "", "": ""} {
		id, err := ParseID(s)
		if (err == nil) != (want != "") || err == nil && id.String() != want {
			t.Errorf("%q: %v, %v", s, id, err)
		}
	}
}

func TestImport(t *testing.T) {
	from, cache := t.TempDir(), t.TempDir()
	for name, body := range map[string]string{"config.json": "{}", "model.safetensors": "weights", "notes.txt": "no"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Import(context.Background(), from, cache, model(t))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := Find(cache, model(t))
	if err != nil || dir != p.Dir || len(p.Files) != 2 {
		t.Fatalf("%s, %v, %+v", dir, err, p)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "model.safetensors")); err != nil || string(got) != "weights" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Import(context.Background(), t.TempDir(), cache, model(t)); !errors.Is(err, ErrFormat) {
		t.Errorf("an empty directory: %v", err)
	}
}

func TestLock(t *testing.T) {
	h := newFakeHub(t)
	dir := t.TempDir()
	unlock, err := lock(filepath.Join(dir, ".trctl.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.client(nil).Pull(context.Background(), model(t), "", dir); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("error %v", err)
	}
	unlock()
}

func FuzzListing(f *testing.F) {
	f.Add([]byte(`{"sha":"` + commit + `","siblings":[{"rfilename":"config.json","size":1,"blobId":"` + commit + `"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		l, err := parseListing(body)
		if err != nil {
			return
		}
		for _, file := range l.Files {
			if !filepath.IsLocal(file.Name) || filepath.Base(file.Name) != file.Name || !filepath.IsLocal(file.etag()) {
				t.Fatalf("%+v", file)
			}
		}
	})
}
