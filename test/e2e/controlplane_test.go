package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/miniproxy/miniproxy/pkg/lab"
)

// controlPlane is etcd, kube-apiserver and kube-controller-manager on a host of
// their own.
type controlPlane struct {
	host  *lab.Host
	dir   string
	ca    *authority
	token string // of a member of system:masters

	config *rest.Config // for use in this process
	client kubernetes.Interface

	etcd, apiServer, controllers *process
}

// newControlPlane starts a control plane on host with its state in dir, and waits
// until the API server is ready.
func newControlPlane(ctx context.Context, host *lab.Host, dir string) (*controlPlane, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	cp := &controlPlane{host: host, dir: dir, ca: ca, token: rand.Text()}
	if err := writeCredentials(dir, ca, cp.certificateIPs(), []string{"kubernetes", "localhost"}, cp.token); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "audit.yaml"), []byte(auditPolicy), 0o644); err != nil {
		return nil, err
	}
	if err := cp.connect(); err != nil {
		return nil, err
	}
	if err := cp.startEtcd(); err != nil {
		return cp, err
	}
	if err := cp.startAPIServer(ctx); err != nil {
		return cp, err
	}
	return cp, cp.startControllers()
}

func (cp *controlPlane) certificateIPs() []net.IP {
	ips := []net.IP{net.IPv4(127, 0, 0, 1), kubernetesIP.AsSlice()}
	for _, a := range controlAddrs {
		ips = append(ips, a.Addr().AsSlice())
	}
	return ips
}

// url is where the nodes find the API server: without any Service's help.
func (cp *controlPlane) url() string {
	return fmt.Sprintf("https://%s:%d", controlAddrs[0].Addr(), apiPort)
}

// connect makes the client of this process, which dials from the control plane's
// own host.
func (cp *controlPlane) connect() (err error) {
	cp.config = &rest.Config{
		Host:            cp.url(),
		BearerToken:     cp.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.ca.pem()},
		Dial:            cp.host.Dial,
		QPS:             -1,
		// Such as that external IPs are on their way out; the cases know.
		WarningHandler: rest.NoWarnings{},
	}
	cp.client, err = kubernetes.NewForConfig(cp.config)
	return err
}

// start starts a program that outlives the test that happened to need it first.
func (cp *controlPlane) start(program string, args ...string) (*process, error) {
	name := filepath.Base(program)
	cmd := cp.host.Command(context.Background(), program, args...)
	return startProcess(name, filepath.Join(cp.dir, name+".log"), cmd)
}

func (cp *controlPlane) startEtcd() (err error) {
	cp.etcd, err = cp.start("etcd",
		"--name=e2e",
		"--data-dir="+filepath.Join(cp.dir, "etcd"),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=e2e=http://127.0.0.1:2380")
	return err
}

// startAPIServer starts the API server, anew after it was stopped, and waits until
// it says that it is ready.
func (cp *controlPlane) startAPIServer(ctx context.Context) (err error) {
	file := func(name string) string { return filepath.Join(cp.dir, name) }
	cp.apiServer, err = cp.start(filepath.Join(os.Getenv(envControlPlane), "kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379",
		fmt.Sprintf("--secure-port=%d", apiPort),
		"--advertise-address="+controlAddrs[0].Addr().String(),
		"--tls-cert-file="+file("server.crt"),
		"--tls-private-key-file="+file("server.key"),
		"--token-auth-file="+file("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+file("sa.key"),
		"--service-account-key-file="+file("sa.key"),
		"--service-cluster-ip-range="+serviceCIDRs,
		"--audit-policy-file="+file("audit.yaml"),
		"--audit-log-path="+cp.auditLog(),
		// The agent's DaemonSet has a privileged init container.
		"--allow-privileged=true")
	if err != nil {
		return err
	}
	return waitUntil(ctx, func(ctx context.Context) error {
		if err := errors.Join(cp.etcd.alive(), cp.apiServer.alive()); err != nil {
			return err
		}
		return cp.client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// stopAPIServer kills the API server; what it knew is in etcd.
func (cp *controlPlane) stopAPIServer() {
	_ = cp.apiServer.end(syscall.SIGKILL) // it ends by the signal, never well
}

// startControllers starts the controllers that Services and pods need: slices, the
// ServiceAccounts that pods may not be without, and the removal of what belonged to
// a deleted Service.
func (cp *controlPlane) startControllers() (err error) {
	kubeconfig := filepath.Join(cp.dir, "controllers.kubeconfig")
	if err := cp.writeKubeconfig(kubeconfig, cp.token); err != nil {
		return err
	}
	cp.controllers, err = cp.start(filepath.Join(os.Getenv(envControlPlane), "kube-controller-manager"),
		"--kubeconfig="+kubeconfig,
		"--controllers=endpointslice-controller,serviceaccount-controller,garbage-collector-controller",
		"--leader-elect=false",
		"--kube-api-qps=1000",
		"--kube-api-burst=1000")
	return err
}

// writeKubeconfig writes a kubeconfig for the nodes' way to the API server.
func (cp *controlPlane) writeKubeconfig(path, token string) error {
	return writeKubeconfig(path, cp.url(), cp.ca.pem(), token)
}

func writeKubeconfig(path, server string, ca []byte, token string) error {
	const name = "e2e"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, path)
}

// stop ends all programs of the control plane.
func (cp *controlPlane) stop() {
	for _, p := range []*process{cp.controllers, cp.apiServer, cp.etcd} {
		if p != nil {
			_ = p.end(syscall.SIGKILL) // it ends by the signal, never well
		}
	}
}
