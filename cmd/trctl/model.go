package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/internal/hub"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/models/catalogue"
	"github.com/tokenrouter/tokenrouter/worker/pair"
)

type modelCmd struct {
	Inspect modelInspectCmd       `cmd:"" help:"Describe a checkpoint and check all of it but the values of its weights."`
	Check   modelCheckCmd         `cmd:"" help:"Find out whether two checkpoints can write one answer together, and in what they differ."`
	List    modelListCmd          `cmd:"" help:"List the models that are known by name, and which are on this machine."`
	Pull    modelPullCmd          `cmd:"" help:"Download a model from a hub; it goes on where it was cut."`
	Convert modelConvertRouterCmd `cmd:"" name:"convert-router" help:"Make a router that deployments can name of a published .pt or .pth file."`
	Import  modelImportCmd        `cmd:"" help:"Put a model that is on disk into the cache, without a network."`
}

// errRefused says that a report above is about something that cannot be served.
var errRefused = errors.New("refused, see above")

// openSide opens a model for a look at it: a directory, an embedded model, or one of the cache.
func openSide(item, cache string) (*pair.Side, error) {
	if dir, cached := cachedDir(item, cache); cached {
		return pair.OpenDir(dir)
	}
	m, err := modelNamed(item)
	if err != nil { // it speaks of the flag that serve has
		return nil, usagef("%s", strings.TrimPrefix(err.Error(), "--models: "))
	}
	if files, embedded := models.FS(m.Name); embedded && m.Dir == "" {
		return pair.OpenFS(files, m.Name), nil
	}
	if m.Dir == "" {
		return nil, usagef("%s is not on this machine; trctl model pull brings it", item)
	}
	return pair.OpenDir(m.Dir)
}

// cachedDir finds a model of the catalogue or of the hub in a cache.
func cachedDir(item, cache string) (string, bool) {
	id, err := hubID(item)
	if err != nil {
		return "", false
	}
	dir, err := hub.Find(cache, id)
	return dir, err == nil
}

// pulledDir finds a model in the cache that the environment says.
func pulledDir(item string) (string, bool) {
	var c cacheFlag
	for _, name := range []string{"TRCTL_MODEL_CACHE", "HF_HUB_CACHE"} {
		if c.Cache == "" {
			c.Cache = os.Getenv(name)
		}
	}
	cache, err := c.dir()
	if err != nil {
		return "", false
	}
	return cachedDir(item, cache)
}

type modelInspectCmd struct {
	cacheFlag
	Model  string `arg:"" placeholder:"MODEL" help:"A checkpoint directory, an embedded model, or one that was pulled."`
	Output string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// Run prints the description. A model that cannot be served is exit code 1.
func (m *modelInspectCmd) Run(p process) error {
	cache, err := m.dir()
	if err != nil {
		return err
	}
	side, err := openSide(m.Model, cache)
	if err != nil {
		return err
	}
	if m.Output == "json" {
		err = writeJSON(p, side.Description)
	} else {
		err = describeModel(p.out, &side.Description)
	}
	if err == nil && len(side.Faults) > 0 {
		err = errRefused
	}
	return err
}

func describeModel(w io.Writer, d *pair.Description) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-14s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("model", "%s", d.Name)
	if d.Architecture != "" {
		row("family", "%s, %s", d.Architecture, d.DType)
		row("parameters", "%d (%s of weights)", d.Parameters, sizeText(d.Bytes))
		row("shape", "%d layers, hidden %d, %d heads on %d of %d, ffn %d", d.Layers, d.Hidden, d.Heads, d.KVHeads, d.HeadDim, d.FFN)
		scale := ""
		if s := d.RopeScaling; s != nil {
			scale = fmt.Sprintf(", stretched by %g from %d", s.Factor, s.OriginalContext)
		}
		row("context", "%d, rotary base %g%s", d.Context, d.RopeTheta, scale)
		row("memory", "%s of keys and values a token", sizeText(d.KVBytes))
	}
	if d.Tokens > 0 {
		rows := ""
		if d.Rows > 0 {
			rows = fmt.Sprintf(" on %d rows", d.Rows)
		}
		row("vocabulary", "%d ids%s, %d added, %.12s", d.Tokens, rows, d.Added, d.Fingerprint)
		row("begins with", "%s", tokenText(d.Begin))
		row("ends with", "%s", tokenText(d.End))
	}
	if d.Template > 0 {
		row("template", "%d bytes", d.Template)
	} else {
		row("template", "none, so no chat: /v1/completions alone")
	}
	for _, f := range d.Faults {
		row("fault", "%s", strings.ReplaceAll(f, "\n", "\n               "))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func tokenText(tokens []pair.Token) string {
	if len(tokens) == 0 {
		return "nothing"
	}
	var out []string
	for _, t := range tokens {
		out = append(out, fmt.Sprintf("%d %q", t.ID, t.Text))
	}
	return strings.Join(out, ", ")
}

// sizeText is a size in binary units.
func sizeText(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	x, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		if x /= 1024; x < 1024 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", x, unit)
}

type modelCheckCmd struct {
	cacheFlag
	Small  string   `arg:"" placeholder:"SMALL" help:"The entry model."`
	Large  string   `arg:"" placeholder:"LARGE" help:"The model that it routes to."`
	Map    []string `placeholder:"SMALL=LARGE" help:"Tokens that mean the same, by text or id: <think>=<think>,151643=151645."`
	Output string   `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// Run prints in what the models differ. A pair that cannot work is exit code 1.
func (m *modelCheckCmd) Run(p process) error {
	cache, err := m.dir()
	if err != nil {
		return err
	}
	small, err := openSide(m.Small, cache)
	if err != nil {
		return err
	}
	large, err := openSide(m.Large, cache)
	if err != nil {
		return err
	}
	mapped, err := pair.ParseMap(small, large, m.Map)
	if err != nil {
		return &usageError{err}
	}
	r := pair.Check(small, large, mapped)
	if m.Output == "json" {
		err = writeJSON(p, r)
	} else {
		err = printReport(p.out, r)
	}
	if err == nil && !r.CompatibleWithMap {
		err = errRefused
	}
	return err
}

func printReport(w io.Writer, r *pair.Report) error {
	var b strings.Builder
	// What else differs from a model that could not be opened tells nothing.
	faults := slices.ContainsFunc(r.Differences, func(d pair.Difference) bool { return d.Kind == pair.KindFault })
	for _, d := range r.Differences {
		if faults && d.Kind != pair.KindFault {
			continue
		}
		word := "note"
		switch {
		case d.Refuse:
			word = "REFUSED"
		case d.Mapped:
			word = "mapped"
		}
		what := d.Kind
		if d.ID != nil {
			what = fmt.Sprintf("%s id %d", d.Kind, *d.ID)
		}
		both := d.Small + " | " + d.Large
		if d.Kind == pair.KindFault {
			what, both = "fault of "+r.Small, d.Small
			if d.Small == "" {
				what, both = "fault of "+r.Large, d.Large
			}
		}
		fmt.Fprintf(&b, "%-8s %s: %s", word, what, strings.ReplaceAll(both, "\n", "\n         "))
		if d.Note != "" {
			fmt.Fprintf(&b, " (%s)", d.Note)
		}
		b.WriteByte('\n')
	}
	if r.More > 0 && !faults {
		fmt.Fprintf(&b, "%-8s %d more ids differ\n", "REFUSED", r.More)
	}
	for _, h := range hints(r, faults) {
		fmt.Fprintf(&b, "%-8s %s\n", "hint", h)
	}
	switch {
	case r.Compatible:
		fmt.Fprintf(&b, "%s and %s can write one answer together\n", r.Small, r.Large)
	case r.CompatibleWithMap:
		fmt.Fprintf(&b, "%s and %s agree once their ids are mapped\n", r.Small, r.Large)
	default:
		fmt.Fprintf(&b, "%s and %s cannot write one answer together\n", r.Small, r.Large)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// hints say what can be done about differences that refuse a pair.
func hints(r *pair.Report, faults bool) []string {
	if faults {
		return nil
	}
	refused := map[string]bool{}
	for _, d := range r.Differences {
		refused[d.Kind] = refused[d.Kind] || d.Refuse
	}
	var out []string
	switch {
	case r.More > 0:
		out = append(out, "these are different vocabularies; choose two models of one family")
	case refused[pair.KindVocabulary]:
		out = append(out, "tokens that mean the same can be named by --map SMALL=LARGE")
	}
	if refused[pair.KindEnd] && !refused[pair.KindVocabulary] {
		out = append(out, "if both know all of these ids, give both the same eos_token_id in generation_config.json")
	}
	if refused[pair.KindSplit] {
		out = append(out, "if one model was made from the other, use one tokenizer.json for both")
	}
	return out
}

type modelListCmd struct {
	cacheFlag
	Output string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// listedModel is one line of the list; its JSON names are stable.
type listedModel struct {
	Name     string `json:"name"`
	Hub      string `json:"hub,omitempty"`
	Embedded bool   `json:"embedded"`
	Dir      string `json:"dir,omitempty"` // in the cache
}

// Run lists embedded models, the catalogue, and what else is in the cache.
func (m *modelListCmd) Run(p process) error {
	cache, err := m.dir()
	if err != nil {
		return err
	}
	rows := []listedModel{}
	for _, name := range models.Names() {
		rows = append(rows, listedModel{Name: name, Embedded: true})
	}
	all, err := catalogue.Default()
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, name := range all.Names() {
		entry, err := all.Find(name)
		if err != nil {
			return err
		}
		known[entry.Hub] = true
		row := listedModel{Name: name, Hub: entry.Hub}
		row.Dir, _ = cachedDir(entry.Hub, cache)
		rows = append(rows, row)
	}
	more, err := cachedModels(cache)
	if err != nil {
		return err
	}
	for _, id := range more {
		if !known[id] {
			dir, _ := cachedDir(id, cache)
			rows = append(rows, listedModel{Name: id, Hub: id, Dir: dir})
		}
	}
	if m.Output == "json" {
		return writeJSON(p, rows)
	}
	name, id := 0, 0
	for _, row := range rows {
		name, id = max(name, len(row.Name)), max(id, len(row.Hub))
	}
	for _, row := range rows {
		where := "trctl model pull " + row.Hub
		if row.Embedded {
			where = "embedded"
		} else if row.Dir != "" {
			where = row.Dir
		}
		fmt.Fprintf(p.out, "%-*s  %-*s  %s\n", name, row.Name, id, row.Hub, where)
	}
	return nil
}

// cachedModels lists the models of a cache that are there at their main revision.
func cachedModels(cache string) ([]string, error) {
	entries, err := os.ReadDir(cache)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		parts := strings.Split(e.Name(), "--")
		if len(parts) != 3 || parts[0] != "models" {
			continue
		}
		id := parts[1] + "/" + parts[2]
		if _, ok := cachedDir(id, cache); ok {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out, nil
}
