package subservice

import "testing"

func TestHistogram(t *testing.T) {
	var h Histogram
	for _, v := range []float64{0, 1, 1.5, 2, 3, 1e9} {
		h.observe(v, 1)
	}
	upTo, all := h.Buckets(1)
	if all != 6 || h.Sum != 1e9+7.5 {
		t.Errorf("%d observations, sum %v", all, h.Sum)
	}
	for bound, want := range map[float64]uint64{1: 2, 2: 4, 4: 5, 1 << 14: 5} {
		if upTo[bound] != want {
			t.Errorf("up to %v: %d, want %d", bound, upTo[bound], want)
		}
	}
	if len(upTo) != histogramBuckets-1 {
		t.Errorf("%d bounds", len(upTo))
	}
}

// What a replica reports of its steps and its cache adds up.
func TestStatsAddUp(t *testing.T) {
	c := startCluster(t, pair("r-stitch", 0.6))
	for i := range uint64(6) {
		k, _ := c.open("m0-0", request(i+1, 20))
		if o := c.read(k, 0); o.Err != nil {
			t.Fatal(o.Err)
		}
	}
	c.await("idle", func(_ *host, s Stats) bool { return s.Queued+s.Running+s.Parked+s.Slots == 0 })
	for name, h := range c.hosts {
		s := h.sub.Stats()
		_, steps := s.BatchRows.Buckets(FirstRows)
		_, timed := s.StepSeconds.Buckets(FirstSeconds)
		if steps != s.Steps || timed != s.Steps || uint64(s.BatchRows.Sum) != s.Rows {
			t.Errorf("%s: %d and %d steps in histograms of %d, %v rows of %d", name, steps, timed, s.Steps, s.BatchRows.Sum, s.Rows)
		}
		if s.Waits != s.Rows || s.BatchWait < 0 || s.QueueWait < 0 {
			t.Errorf("%s: %d waits for %d rows, %s and %s", name, s.Waits, s.Rows, s.BatchWait, s.QueueWait)
		}
		if s.Admissions != 6 {
			t.Errorf("%s: %d admissions", name, s.Admissions)
		}
		if s.Paused != 0 {
			t.Errorf("%s: %d paused", name, s.Paused)
		}
	}
}
