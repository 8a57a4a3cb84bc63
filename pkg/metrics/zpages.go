package metrics

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8smetrics "k8s.io/component-base/metrics"
	"sigs.k8s.io/yaml"
)

// /statusz and /flagz as every Kubernetes component shows them (KEP-4827, KEP-4828).
// The originals live in k8s.io/apiserver, which would bring etcd and gRPC along.

// zpagesVersion is the version of the structured forms.
const zpagesVersion = "config.k8s.io/v1beta1"

const zpagesHeader = "\n%s %s\n" +
	"Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"

// statuszObject is the structured form of /statusz.
type statuszObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	StartTime         metav1.Time `json:"startTime"`
	UptimeSeconds     int64       `json:"uptimeSeconds"`
	GoVersion         string      `json:"goVersion,omitempty"`
	BinaryVersion     string      `json:"binaryVersion"`
	Paths             []string    `json:"paths"`
}

// flagzObject is the structured form of /flagz.
type flagzObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Flags             map[string]string `json:"flags,omitempty"`
}

// statusz shows the process: since when it runs, which version, which pages it has.
func statusz(component, version string, paths []string) http.Handler {
	paths = folders(paths)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := processStart()
		up := max(0, time.Since(started))
		writeZpage(w, r, "Statusz",
			func() string {
				return fmt.Sprintf(zpagesHeader+"\nStarted: %s\nUp: %s\nGo version: %s\nBinary version: %s\n\nPaths: %s\n",
					component, "statusz", started.Format(time.UnixDate), uptime(up), runtime.Version(), version, strings.Join(paths, " "))
			},
			statuszObject{
				TypeMeta:   metav1.TypeMeta{Kind: "Statusz", APIVersion: zpagesVersion},
				ObjectMeta: metav1.ObjectMeta{Name: component},
				StartTime:  metav1.Time{Time: started}, UptimeSeconds: int64(up.Seconds()),
				GoVersion: runtime.Version(), BinaryVersion: version, Paths: paths,
			})
	})
}

// flagz shows the flags that the process was started with.
func flagz(component string, flags map[string]string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeZpage(w, r, "Flagz",
			func() string {
				var b strings.Builder
				fmt.Fprintf(&b, zpagesHeader, component, "flagz")
				for _, name := range slices.Sorted(maps.Keys(flags)) {
					fmt.Fprintf(&b, "%s=%s\n", name, flags[name])
				}
				return b.String()
			},
			flagzObject{
				TypeMeta:   metav1.TypeMeta{Kind: "Flagz", APIVersion: zpagesVersion},
				ObjectMeta: metav1.ObjectMeta{Name: component},
				Flags:      flags,
			})
	})
}

// processStart is when the process began, to the second; the zero time when /proc
// does not tell.
func processStart() time.Time {
	seconds, err := k8smetrics.GetProcessStart()
	if err != nil {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}

func uptime(d time.Duration) string {
	s := int64(d.Seconds())
	return fmt.Sprintf("%d hr %02d min %02d sec", s/3600, s/60%60, s%60)
}

// folders are the distinct first elements of paths, sorted.
func folders(paths []string) []string {
	set := map[string]bool{}
	for _, p := range paths {
		first, _, _ := strings.Cut(strings.TrimPrefix(p, "/"), "/")
		set["/"+first] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// writeZpage answers in the form that the request accepts: plain text, or object
// as JSON or YAML for who names its kind and version.
func writeZpage(w http.ResponseWriter, r *http.Request, kind string, plain func() string, object any) {
	format := accepted(r.Header.Get("Accept"), kind)
	var body []byte
	var err error
	switch format {
	case "text/plain":
		writeText(w, http.StatusOK, plain())
		return
	case "application/json":
		body, err = json.MarshalIndent(object, "", "  ")
	case "application/yaml":
		body, err = yaml.Marshal(object)
	default:
		writeText(w, http.StatusNotAcceptable, fmt.Sprintf("this page is text/plain, or application/json or application/yaml with ;as=%s;g=config.k8s.io;v=v1beta1\n", kind))
		return
	}
	if err != nil {
		writeText(w, http.StatusInternalServerError, fmt.Sprintf("show %s: %v\n", kind, err))
		return
	}
	w.Header().Set("Content-Type", format)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(body) // it fails when the caller hung up
}

// accepted returns the media type to answer with: of the ranges in an Accept header
// that can be served the one with the highest quality, the first of equals; ""
// when there is none.
func accepted(header, kind string) string {
	if strings.TrimSpace(header) == "" {
		return "text/plain"
	}
	best, bestQuality := "", 0.0
	for part := range strings.SplitSeq(header, ",") {
		media, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		quality := 1.0
		if q, ok := params["q"]; ok {
			if quality, err = strconv.ParseFloat(q, 64); err != nil {
				continue
			}
		}
		if format := servable(media, params, kind); format != "" && quality > bestQuality {
			best, bestQuality = format, quality
		}
	}
	return best
}

// servable returns the media type that serves one range of an Accept header.
func servable(media string, params map[string]string, kind string) string {
	// Parameter values keep their case, names are lower-cased.
	as, group, version := params["as"], params["g"], params["v"]
	switch media {
	case "text/plain", "text/*", "*/*":
		if as == "" {
			return "text/plain"
		}
	case "application/json", "application/yaml":
		if as == kind && group == "config.k8s.io" && version == "v1beta1" {
			return media
		}
	}
	return ""
}
