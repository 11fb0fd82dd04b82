package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

// process is this program in a role. What it prints comes line by line; it ends when its standard input does.
type process struct {
	command *exec.Cmd
	stdin   io.Closer
	lines   chan string
	ended   chan struct{}
	err     error // once it has ended
}

func start(settings []string, words ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(self, words...)
	command.Env, command.Stderr = append(os.Environ(), settings...), os.Stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	started := &process{command, stdin, make(chan string, 1024), make(chan struct{}), nil}
	go started.follow(stdout)
	return started, nil
}

func (p *process) follow(stdout io.Reader) {
	for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
		p.lines <- scanner.Text()
	}
	close(p.lines)
	p.err = p.command.Wait()
	close(p.ended)
}

func (p *process) line() (string, error) {
	select {
	case line, is := <-p.lines:
		if !is {
			return "", fmt.Errorf("%s ended at once", p.command.Args)
		}
		return line, nil
	case <-time.After(patience):
		return "", fmt.Errorf("%s said nothing", p.command.Args)
	}
}

// accepts returns when something listens there, or the process has ended, or patience has.
func (p *process) accepts(address string) error {
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if connection, err := net.Dial("tcp", address); err == nil {
			return connection.Close()
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended at once", p.command.Args)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s does not listen at %s", p.command.Args, address)
}

func (p *process) stop() error {
	p.stdin.Close()
	go func() {
		for range p.lines { // what nobody reads any more must not hold it up
		}
	}()
	select {
	case <-p.ended:
		return p.err
	case <-time.After(patience):
		return errors.Join(fmt.Errorf("%s had to be killed", p.command.Args), p.command.Process.Kill())
	}
}

// freeAddress is one that nobody listens at now.
func freeAddress() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}
