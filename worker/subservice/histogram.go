package subservice

// Histogram counts observations in buckets whose bounds double: bucket i has
// those up to First·2^i that are in no bucket before, and the last one all
// others. It is a value: a snapshot is a copy.
type Histogram struct {
	Counts [histogramBuckets]uint64
	Sum    float64
}

const histogramBuckets = 16

// First is the bound of a histogram's first bucket: of rows, and of seconds.
const (
	FirstRows    = 1
	FirstSeconds = 100e-6
)

// observe adds v to a histogram whose first bound is first.
func (h *Histogram) observe(v, first float64) {
	h.Sum += v
	i := 0
	for bound := first; v > bound && i < histogramBuckets-1; bound *= 2 {
		i++
	}
	h.Counts[i]++
}

// Buckets returns the number of observations up to each bound, and of all.
func (h *Histogram) Buckets(first float64) (upTo map[float64]uint64, all uint64) {
	upTo = make(map[float64]uint64, histogramBuckets-1)
	bound := first
	for i, n := range h.Counts {
		all += n
		if i < histogramBuckets-1 {
			upTo[bound] = all
			bound *= 2
		}
	}
	return upTo, all
}
