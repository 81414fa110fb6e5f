package model

// FromTensors is a checkpoint of tensors in memory, which must not change while it is used. Check reports what does not
// fit the configuration.
func FromTensors(name string, c Config, tensors []Tensor) *Checkpoint {
	k := &Checkpoint{
		Name: name, Config: c, Generation: Generation{EOS: c.EOS},
		tensors: make(map[string]Tensor, len(tensors)), where: make(map[string]string, len(tensors)), list: "memory",
	}
	for _, t := range tensors {
		k.tensors[t.Name], k.where[t.Name] = t, "memory"
	}
	return k
}
