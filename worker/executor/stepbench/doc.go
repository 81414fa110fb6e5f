// Package stepbench measures single steps of an executor, without scheduler or sub-service: decode and extend of some rows
// at a context, and prefills. Beside each time stands the floor that memory bandwidth and arithmetic allow.
//
// Its callers are trctl bench-step and benchmarks. It opens slots of its own and wants the whole executor for itself.
package stepbench
