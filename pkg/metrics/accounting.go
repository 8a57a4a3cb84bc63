package metrics

import (
	k8smetrics "k8s.io/component-base/metrics"
)

// Accounting reads the packet counters of nfacct objects in the kernel.
type Accounting interface {
	// Packets is how many packets the object of that name has counted.
	Packets(name string) (uint64, error)
}

// RegisterAccounting registers the two counters that the kernel keeps in nfacct
// objects: dropped packets of conntrack state INVALID, and packets accepted for
// node ports on loopback addresses. invalid and localhost are the objects' names,
// empty for an object that does not exist; its metric is then absent, as it is
// whenever the object cannot be read: a zero would claim that no packet came.
func RegisterAccounting(reg Registerer, from Accounting, invalid, localhost string) {
	c := &accounting{from: from}
	if invalid != "" {
		c.counters = append(c.counters, accountingCounter{invalid, k8smetrics.NewDesc(
			kubeproxy+"_iptables_ct_state_invalid_dropped_packets_total",
			"Forwarded packets dropped because conntrack could not place them", nil, nil, k8smetrics.ALPHA, "")})
	}
	if localhost != "" {
		c.counters = append(c.counters, accountingCounter{localhost, k8smetrics.NewDesc(
			kubeproxy+"_iptables_localhost_nodeports_accepted_packets_total",
			"Packets accepted for node ports on loopback addresses", nil, nil, k8smetrics.ALPHA, "")})
	}
	if len(c.counters) > 0 {
		reg.CustomMustRegister(c)
	}
}

// accounting reads the counters when it is scraped.
type accounting struct {
	k8smetrics.BaseStableCollector
	from     Accounting
	counters []accountingCounter
}

type accountingCounter struct {
	object string
	desc   *k8smetrics.Desc
}

// DescribeWithStability is part of StableCollector.
func (a *accounting) DescribeWithStability(ch chan<- *k8smetrics.Desc) {
	for _, c := range a.counters {
		ch <- c.desc
	}
}

// CollectWithStability is part of StableCollector.
func (a *accounting) CollectWithStability(ch chan<- k8smetrics.Metric) {
	for _, c := range a.counters {
		if packets, err := a.from.Packets(c.object); err == nil {
			ch <- k8smetrics.NewLazyConstMetric(c.desc, k8smetrics.CounterValue, float64(packets))
		}
	}
}
