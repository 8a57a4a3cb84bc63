package golden

import (
	"bytes"
	"fmt"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

// decodeObjects reads the objects of a file of several YAML documents.
func decodeObjects(data []byte) (Objects, error) {
	var o Objects
	for i, document := range bytes.Split(data, []byte("\n---\n")) {
		if err := o.add(document); err != nil {
			return Objects{}, fmt.Errorf("object %d: %w", i+1, err)
		}
	}
	return o, nil
}

func (o *Objects) add(document []byte) error {
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Node":
		return addTo(&o.Nodes, document, new(v1.Node))
	case "Service":
		return addTo(&o.Services, document, new(v1.Service))
	case "EndpointSlice":
		return addTo(&o.Slices, document, new(discoveryv1.EndpointSlice))
	}
	return fmt.Errorf("kind %q", kind.Kind)
}

func addTo[T any](list *[]T, document []byte, object T) error {
	if err := yaml.UnmarshalStrict(document, object); err != nil {
		return err
	}
	*list = append(*list, object)
	return nil
}
