package main

import (
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// TestAPIServer lets the client library that both agents use list and watch.
func TestAPIServer(t *testing.T) {
	api, err := newAPIServer(load{services: 3, endpoints: 2})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(api)
	defer server.Close()
	defer server.CloseClientConnections()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"}})
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan *discoveryv1.EndpointSlice, 1)
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services().Informer()
	slices := factory.Discovery().V1().EndpointSlices().Informer()
	nodes := factory.Core().V1().Nodes().Informer()
	cidrs := factory.Networking().V1().ServiceCIDRs().Informer()
	if _, err := slices.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) { changed <- obj.(*discoveryv1.EndpointSlice) },
	}); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), services.HasSynced, slices.HasSynced, nodes.HasSynced, cidrs.HasSynced) {
		t.Fatal("the lists were not delivered")
	}
	for _, tt := range []struct {
		name string
		got  int
		want int
	}{
		{"Services", len(services.GetStore().List()), 4},
		{"EndpointSlices", len(slices.GetStore().List()), 4},
		{"Nodes", len(nodes.GetStore().List()), 1},
		{"ServiceCIDRs", len(cidrs.GetStore().List()), 0},
	} {
		if tt.got != tt.want {
			t.Errorf("%d %s, want %d", tt.got, tt.name, tt.want)
		}
	}
	obj, _, _ := services.GetStore().GetByKey("default/service-00001")
	if got := obj.(*corev1.Service).Spec.ClusterIP; got != serviceAddr(1).Addr().String() {
		t.Errorf("cluster IP %s, want %s", got, serviceAddr(1))
	}

	if err := api.put(slice("probe", probeEndpoints[1])); err != nil {
		t.Fatal(err)
	}
	if got := <-changed; got.Endpoints[0].Addresses[0] != probeEndpoints[1].String() {
		t.Errorf("the changed slice has %v, want %s", got.Endpoints, probeEndpoints[1])
	}
	if _, err := client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("report an event: %v", err)
	}
}
