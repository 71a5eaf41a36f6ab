package functionapi

import "github.com/pandastack/pandastack/api"

// onQueue returns the service and the queue in the path. What can be no name is not found.
func (a API) onQueue(c *Call) (Jobs, string, error) {
	s, err := a.jobs()
	if err != nil {
		return nil, "", err
	}
	name := c.R.PathValue("queue")
	if !api.ValidFunctionName(name) {
		return nil, "", api.Errorf(api.NotFound, "queue %.60q not found", name)
	}
	return s, name, nil
}

func (a API) createQueue(c *Call, req api.CreateQueueRequest) (out api.Queue, err error) {
	s, err := a.jobs()
	if err != nil {
		return out, err
	}
	c.Target = req.Name
	return s.CreateQueue(c.Context(), c.Principal, req)
}

func (a API) queues(c *Call) ([]api.Queue, error) {
	s, err := a.jobs()
	if err != nil {
		return nil, err
	}
	all, err := s.Queues(c.Context(), c.Principal)
	return some(all), err
}

func (a API) queue(c *Call) (out api.Queue, err error) {
	s, name, err := a.onQueue(c)
	if err != nil {
		return out, err
	}
	return s.Queue(c.Context(), c.Principal, name)
}

func (a API) updateQueue(c *Call, req api.UpdateQueueRequest) (out api.Queue, err error) {
	s, name, err := a.onQueue(c)
	if err != nil {
		return out, err
	}
	return s.UpdateQueue(c.Context(), c.Principal, name, req)
}

func (a API) deleteQueue(c *Call) error {
	s, name, err := a.onQueue(c)
	if err != nil {
		return err
	}
	return s.DeleteQueue(c.Context(), c.Principal, name)
}

func (a API) send(c *Call, req api.SendRequest) (out api.SendResponse, err error) {
	c.Action = "send" // programs repeat these
	s, name, err := a.onQueue(c)
	if err != nil {
		return out, err
	}
	out, err = s.Send(c.Context(), c.Principal, name, req)
	out.IDs = some(out.IDs)
	return out, err
}

func (a API) receive(c *Call, req api.ReceiveRequest) (out api.ReceiveResponse, err error) {
	c.Action = "receive" // programs repeat these
	s, name, err := a.onQueue(c)
	if err != nil {
		return out, err
	}
	out, err = s.Receive(c.Context(), c.Principal, name, req)
	out.Messages = some(out.Messages)
	return out, err
}

func (a API) ack(c *Call, req api.AckRequest) error {
	c.Action = "ack" // programs repeat these
	s, name, err := a.onQueue(c)
	if err != nil {
		return err
	}
	return s.Ack(c.Context(), c.Principal, name, req)
}

func (a API) extend(c *Call, req api.ExtendRequest) error {
	c.Action = "extend" // programs repeat these
	s, name, err := a.onQueue(c)
	if err != nil {
		return err
	}
	return s.Extend(c.Context(), c.Principal, name, req)
}
