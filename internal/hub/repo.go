package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	maxListing  = 16 << 20
	maxFiles    = 2048
	maxFileSize = int64(1) << 41
)

// ID names a model on the hub, at a revision.
type ID struct {
	Owner, Name string
	Revision    string // a branch, a tag or a commit
}

// ParseID reads ORG/NAME[@REV]; the revision is main if there is none.
func ParseID(s string) (ID, error) {
	model, rev, found := strings.Cut(s, "@")
	if !found {
		rev = "main"
	}
	owner, name, _ := strings.Cut(model, "/")
	part := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$`)
	for _, p := range []string{owner, name} {
		if !part.MatchString(p) || strings.Contains(p, "..") || strings.Contains(p, "--") {
			return ID{}, fmt.Errorf("hub: expected ORG/NAME[@REVISION], found %q", s)
		}
	}
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$`).MatchString(rev) || strings.Contains(rev, "..") {
		return ID{}, fmt.Errorf("hub: the revision %q is none", rev)
	}
	return ID{owner, name, rev}, nil
}

func (id ID) String() string { return id.Owner + "/" + id.Name + "@" + id.Revision }

// File is a file of a model, as the hub describes it.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	// SHA256 is the digest in hex; of small files the hub knows only BlobID, the SHA-1
	// that git has of it, until they are here.
	SHA256 string `json:"sha256"`
	BlobID string `json:"blob_id,omitempty"`
}

// etag is what the file is called among the blobs of the cache.
func (f *File) etag() string {
	if f.SHA256 != "" {
		return f.SHA256
	}
	return f.BlobID
}

// Listing is a model at a commit.
type Listing struct {
	Commit string
	Files  []File
}

// List asks the hub for the files that an engine reads.
func (c *Client) List(ctx context.Context, id ID) (*Listing, error) {
	var body []byte
	err := c.retry(ctx, func() bool { return false }, func() error {
		resp, err := c.get(ctx, "/api/models/"+id.Owner+"/"+id.Name+"/revision/"+url.PathEscape(id.Revision)+"?blobs=true", nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, err = io.ReadAll(io.LimitReader(resp.Body, maxListing+1)); err == nil && len(body) > maxListing {
			err = fmt.Errorf("%w: a listing of more than %d bytes", ErrProtocol, maxListing)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", id, err)
	}
	l, err := parseListing(body)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", id, err)
	}
	return l, nil
}

// parseListing reads the hub's answer and picks the files.
func parseListing(body []byte) (*Listing, error) {
	var answer struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   int64  `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				Size   int64  `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if !hexDigest(answer.SHA, 40) {
		return nil, fmt.Errorf("%w: the commit %.60q", ErrProtocol, answer.SHA)
	}
	l := &Listing{Commit: answer.SHA}
	var names []string
	for _, s := range answer.Siblings {
		names = append(names, s.Name)
		if !wanted(s.Name) || slices.ContainsFunc(l.Files, func(f File) bool { return f.Name == s.Name }) {
			continue
		}
		f := File{Name: s.Name, Size: s.Size, BlobID: s.BlobID}
		if s.LFS != nil {
			f.SHA256, f.Size = s.LFS.SHA256, s.LFS.Size
		}
		if f.Size < 0 || f.Size > maxFileSize || f.SHA256 != "" && !hexDigest(f.SHA256, 64) || f.SHA256 == "" && !hexDigest(f.BlobID, 40) {
			return nil, fmt.Errorf("%w: %s of %d bytes has no digest", ErrProtocol, f.Name, f.Size)
		}
		if len(l.Files) == maxFiles {
			return nil, fmt.Errorf("%w: more than %d files", ErrProtocol, maxFiles)
		}
		l.Files = append(l.Files, f)
	}
	return l, l.complete(names)
}

// complete checks that there are weights, and drops those that stand beside sharded ones.
func (l *Listing) complete(names []string) error {
	has := func(name string) bool {
		return slices.ContainsFunc(l.Files, func(f File) bool { return f.Name == name })
	}
	if !has("config.json") {
		return fmt.Errorf("%w: it has no config.json", ErrFormat)
	}
	single := has("model.safetensors")
	sharded := has("model.safetensors.index.json")
	if single || sharded {
		l.Files = slices.DeleteFunc(l.Files, func(f File) bool {
			shard := regexp.MustCompile(`^model-\d+-of-\d+\.safetensors$`).MatchString(f.Name)
			return strings.HasSuffix(f.Name, ".safetensors") && (single != (f.Name == "model.safetensors") || !single && !shard)
		})
		return nil
	}
	for _, name := range names {
		switch path.Ext(name) {
		case ".bin", ".pt", ".pth":
			return fmt.Errorf("%w: it has %s: pickled weights can run code and are not read; look for a revision with safetensors, or convert it with save_pretrained of transformers", ErrFormat, path.Base(name))
		case ".gguf":
			return fmt.Errorf("%w: it has %s: pull the original model that it was made from", ErrFormat, path.Base(name))
		}
	}
	return fmt.Errorf("%w: it has neither model.safetensors nor an index", ErrFormat)
}

// wanted reports whether an engine reads a file of this name. Names with a directory
// are not wanted, so none leads out of the model's own.
func wanted(name string) bool {
	switch name {
	case "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "model.safetensors.index.json", "LICENSE", "LICENSE.txt":
		return true
	}
	return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.safetensors$`).MatchString(name) && !strings.Contains(name, "..")
}

func hexDigest(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}
