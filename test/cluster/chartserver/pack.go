package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"syscall"
	"time"
)

const (
	indexName = "index.yaml"
	chartMax  = 32 << 20
)

// Every packed file has this time, so that equal charts make equal archives.
var packTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var (
	scalarLine = regexp.MustCompile(`^([A-Za-z]+):\s*(.*?)\s*$`)
	safeName   = regexp.MustCompile(`^[A-Za-z0-9._+-]+$`)
)

// chartYAML is what an index tells about a chart.
type chartYAML struct {
	Name, Version, AppVersion, Description, APIVersion string
}

// parseChartYAML reads the scalars at the top level of a Chart.yaml, each on a line of its own;
// that is all our charts have.
func parseChartYAML(text []byte) (chartYAML, error) {
	var c chartYAML
	field := map[string]*string{"name": &c.Name, "version": &c.Version, "appVersion": &c.AppVersion,
		"description": &c.Description, "apiVersion": &c.APIVersion}
	for line := range strings.Lines(string(text)) {
		m := scalarLine.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil || field[m[1]] == nil {
			continue
		}
		value := m[2]
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		} else if at := strings.Index(value, " #"); at >= 0 {
			value = strings.TrimSpace(value[:at])
		}
		*field[m[1]] = value
	}
	if !safeName.MatchString(c.Name) || !safeName.MatchString(c.Version) {
		return c, fmt.Errorf("Chart.yaml: name %q and version %q must be plain scalars", c.Name, c.Version)
	}
	return c, nil
}

var versionLine = regexp.MustCompile(`(?m)^version:.*$`)

// pack writes DIR/NAME-VERSION.tgz from a chart directory, with another version if one is given,
// and lists it in the index.
func pack(dir, source, version string) (string, error) {
	text, err := os.ReadFile(filepath.Join(source, "Chart.yaml"))
	if err != nil {
		return "", err
	}
	if version != "" {
		text = versionLine.ReplaceAllLiteral(text, []byte("version: "+version))
	}
	chart, err := parseChartYAML(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", source, err)
	}
	archive, err := archiveOf(source, chart.Name, text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", source, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	path := filepath.Join(dir, chart.Name+"-"+chart.Version+".tgz")
	if err := writeFileAtomic(path, archive); err != nil {
		return "", err
	}
	return path, writeIndex(dir)
}

// archiveOf makes the .tgz: files in order of name, one time, one owner, one mode.
func archiveOf(source, name string, chartText []byte) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !entry.Type().IsRegular() {
			return fmt.Errorf("%s is no regular file", path)
		}
		inside, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		data := chartText
		if inside != "Chart.yaml" {
			if data, err = os.ReadFile(path); err != nil {
				return err
			}
		}
		header := &tar.Header{Name: name + "/" + filepath.ToSlash(inside), Mode: 0o644, Size: int64(len(data)),
			ModTime: packTime, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err = archive.Write(data)
		return err
	})
	if err := errors.Join(err, archive.Close(), zip.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// writeIndex lists all archives of dir. In the order of their file names, not of their versions:
// whoever reads an index must sort it himself.
func writeIndex(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil {
		return err
	}
	sort.Strings(paths)
	entries := map[string][]string{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		chart, err := chartInArchive(data)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		entries[chart.Name] = append(entries[chart.Name], indexEntry(chart, filepath.Base(path), data))
	}
	var names []string
	for name := range entries {
		names = append(names, name)
	}
	sort.Strings(names)
	var text strings.Builder
	text.WriteString("apiVersion: v1\nentries:\n")
	for _, name := range names {
		fmt.Fprintf(&text, "  %s:\n%s", name, strings.Join(entries[name], ""))
	}
	fmt.Fprintf(&text, "generated: %q\n", packTime.Format(time.RFC3339))
	return writeFileAtomic(filepath.Join(dir, indexName), []byte(text.String()))
}

func indexEntry(chart chartYAML, file string, data []byte) string {
	return fmt.Sprintf(`  - apiVersion: %q
    appVersion: %q
    created: %q
    description: %q
    digest: %x
    name: %q
    urls:
    - %q
    version: %q
`, chart.APIVersion, chart.AppVersion, packTime.Format(time.RFC3339), chart.Description, sha256.Sum256(data),
		chart.Name, file, chart.Version)
}

// chartInArchive reads NAME/Chart.yaml of a .tgz.
func chartInArchive(data []byte) (chartYAML, error) {
	zip, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return chartYAML{}, err
	}
	archive := tar.NewReader(io.LimitReader(zip, chartMax))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return chartYAML{}, errors.New("holds no Chart.yaml")
		}
		if err != nil {
			return chartYAML{}, err
		}
		if _, inside, _ := strings.Cut(header.Name, "/"); inside == "Chart.yaml" {
			text, err := io.ReadAll(archive)
			if err != nil {
				return chartYAML{}, err
			}
			return parseChartYAML(text)
		}
	}
}

// lockDir makes calls of pack on one directory wait for each other: each writes the whole index.
func lockDir(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		file.Close()
		return nil, err
	}
	return func() { file.Close() }, nil
}

// writeFileAtomic replaces path in one step, so that a server never shows half an index.
func writeFileAtomic(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
