// Package pickle reads files of torch.save without running what they say.
//
// A pickle is a program that may call anything that Python can import. This reader is
// a machine for a small part of its language, which can only build dicts, lists,
// tuples, strings, numbers, and tensors of float32, float16, bfloat16 and int64. Any
// other function or class is an error that names it, and so is every instruction that
// could call one in another way.
//
// The converter of routers is the caller. Everything is bounded before it is
// allocated: the program, its stack, the values, the archive's directory. Values are
// shared and may contain themselves, as in Python, so callers must not walk through
// them without a bound. A tensor's bytes are read when they are asked for, not before,
// and the archive must not be compressed (torch.save never does), so that neither
// small programs nor small files become large memory.
package pickle
