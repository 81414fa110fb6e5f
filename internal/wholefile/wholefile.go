package wholefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write puts text, with the permissions mode, in the place of what is at path. It
// writes another file beside it first, which nobody but the owner can read, and which
// is gone again if that fails.
func Write(path string, text []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
