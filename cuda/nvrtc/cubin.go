package nvrtc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"
	"strings"
)

// Attributes of section .nv.info: one byte of format, one of kind, two of size, then the value. Those of interest hold
// a symbol's index and a number.
const (
	infoSized     = 4 // the format whose size is that of the value which follows; others have no value behind
	infoRegisters = 0x2f
	infoFrame     = 0x11
)

// cubinUsage reads the resources of each kernel from the image itself: registers, stack and shared memory, in order of
// their names. Spills are not there, but a kernel that spills has a stack. What cannot be read is left out.
func cubinUsage(cubin []byte) []Usage {
	const versionAt, headerBytes = 6, 64
	if len(cubin) < headerBytes {
		return nil
	}
	image := slices.Clone(cubin)
	image[versionAt] = byte(elf.EV_CURRENT) // older compilers mark their own version here
	binary.LittleEndian.PutUint32(image[20:], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil
	}
	info := section(f, ".nv.info")
	byName := map[string]*Usage{}
	for _, s := range f.Sections {
		if name, ok := strings.CutPrefix(s.Name, ".text."); ok {
			byName[name] = &Usage{Kernel: name}
		}
	}
	for name, u := range byName {
		if s := f.Section(".nv.shared." + name); s != nil && s.Size < 1<<31 {
			u.SharedBytes = int(s.Size)
		}
	}
	for len(info) >= 4 {
		format, kind, size := info[0], info[1], int(binary.LittleEndian.Uint16(info[2:]))
		info = info[4:]
		if format != infoSized {
			continue // the number is the size field itself
		}
		if size > len(info) {
			break
		}
		if size == 8 {
			symbol, value := binary.LittleEndian.Uint32(info), binary.LittleEndian.Uint32(info[4:])
			if i := int64(symbol) - 1; i >= 0 && i < int64(len(symbols)) && byName[symbols[i].Name] != nil && value < 1<<31 {
				byName[symbols[i].Name].set(kind, int(value))
			}
		}
		info = info[size:]
	}
	out := make([]Usage, 0, len(byName))
	for _, u := range byName {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b Usage) int { return strings.Compare(a.Kernel, b.Kernel) })
	return out
}

func (u *Usage) set(kind byte, value int) {
	switch kind {
	case infoRegisters:
		u.Registers = value
	case infoFrame:
		u.StackBytes = value
	}
}

// section is a section's content, or nothing.
func section(f *elf.File, name string) []byte {
	s := f.Section(name)
	if s == nil {
		return nil
	}
	data, err := s.Data()
	if err != nil {
		return nil
	}
	return data
}
