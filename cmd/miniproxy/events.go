package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/miniproxy/miniproxy/pkg/model"
)

// The actions and reasons of events. Those that kube-proxy has too are its own.
const (
	actionStart  = "StartKubeProxy"
	actionListen = "Listen"
	actionSync   = "SyncProxyRules" // followed by the family

	reasonStarting       = "Starting"
	reasonDefaultMode    = "KubeProxyDefaultMode"
	reasonHealthFailed   = "FailedToStartProxierHealthcheck"
	reasonMetricsFailed  = "FailedToStartMetricServer"
	reasonPortFailed     = "FailedToStartServiceHealthcheck"
	reasonFrontendTaken  = "FrontendTaken"
	reasonRangesNotUsed  = "SourceRangesNotUsed"
	reasonRefused        = "RulesRefused"
	reasonFight          = "RulesContested"
	reasonRival          = "SecondProxy"
	reportingController  = "miniproxy"
	defaultModeDescribed = "No proxy mode was chosen: using iptables, the only one there is. Set mode: iptables, since kube-proxy's own default will be another one in Kubernetes 1.40."
)

// reporter writes events about the node and about Services. Without an API server
// it is silent.
type reporter struct {
	recorder events.EventRecorder
	node     *corev1.ObjectReference
}

// newReporter returns a reporter whose events reach the API server for as long as
// the context lives. One that cannot be delivered is dropped after some attempts.
func newReporter(ctx context.Context, client kubernetes.Interface, nodeName string) (*reporter, error) {
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return &reporter{
		recorder: broadcaster.NewRecorder(scheme.Scheme, reportingController),
		// A Node's events carry its name in place of its UID, as kubelet's do.
		node: &corev1.ObjectReference{Kind: "Node", Name: nodeName, UID: types.UID(nodeName)},
	}, nil
}

// aboutNode writes an event about the node.
func (r *reporter) aboutNode(kind, reason, action, note string, args ...any) {
	r.write(r.node, kind, reason, action, note, args...)
}

// aboutService writes a warning about a Service.
func (r *reporter) aboutService(name model.ServiceName, uid, reason, action, note string, args ...any) {
	r.write(service(name, uid), corev1.EventTypeWarning, reason, action, note, args...)
}

// aboutServicePort writes a warning about what one family does not get of a port of a
// Service. Events that differ in their notes only would be taken for one, with the
// note of the first: that is why port and family are not said there alone.
func (r *reporter) aboutServicePort(name model.ServicePortName, family model.Family, uid, reason, note string, args ...any) {
	svc := service(name.ServiceName, uid)
	svc.FieldPath = fmt.Sprintf("spec.ports{%s}", name.Port)
	r.write(svc, corev1.EventTypeWarning, reason, actionSync+family.String(), note, args...)
}

// service refers to a Service.
func service(name model.ServiceName, uid string) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name, UID: types.UID(uid)}
}

// noteLimit is how long a note may be, in bytes: the API server refuses longer ones.
const noteLimit = 1024

func (r *reporter) write(about runtime.Object, kind, reason, action, note string, args ...any) {
	if r.recorder == nil {
		return
	}
	text := fmt.Sprintf(note, args...)
	if len(text) > noteLimit {
		text = strings.ToValidUTF8(text[:noteLimit-len("...")], "") + "..."
	}
	r.recorder.Eventf(about, nil, kind, reason, action, "%s", text)
}
