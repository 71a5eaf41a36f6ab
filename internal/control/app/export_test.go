package app

// Poked reports whether Run has not yet seen that it is to look at all apps.
func (s *Service) Poked() bool { return len(s.poked) > 0 }
