// Package timeline says where the time of a step went on the device, from what the blocks of its kernels noted
// (kernels.Timeline) and the order of its launches.
//
// Cut assigns blocks to launches, Summarize adds launches up by operation, and WriteTrace writes them for a viewer of Chrome
// traces. The executor is the caller of Cut, trctl of the others. The package is pure: it reads no clock and no device.
package timeline
