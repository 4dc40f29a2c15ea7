#!/bin/sh
# Mounts a data volume of the cluster on the machine that calls this: the one that it has already, else a free one.
#
#   data-volume.sh aws|gcp CLUSTER ROLE FOLDER
#
# A volume belongs to the cluster by its tag (AWS) or label (GCP) raymq-cluster=CLUSTER, and is for the head or for the
# workers by raymq-role=ROLE. It outlives the machines: one that is made in place of another takes the volume that became
# free, and with it the brokers whose directories it holds. A volume that has no file system yet gets one; nothing is
# ever formatted that has. The ray-up files call this before each start of Ray; where the folder is mounted it does
# nothing.
#
# It needs the volumes' zone to be the machine's, and the rights to list and to attach volumes (docs/deployment.md).
set -eu

provider=$1 cluster=$2 role=$3 folder=$4
patience=${RAYMQ_VOLUME_SECONDS:-600} # a machine that is gone keeps its volume for some minutes

say() { echo "data-volume: $*" >&2; }

case $provider in
aws)
    metadata=http://169.254.169.254/latest
    token=$(curl -fsS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 3600' $metadata/api/token)
    ask() { curl -fsS -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/$1"; }
    machine=$(ask instance-id) zone=$(ask placement/availability-zone)
    AWS_DEFAULT_REGION=$(ask placement/region)
    export AWS_DEFAULT_REGION
    list() { # of this cluster, with one more filter
        aws ec2 describe-volumes --output text --query 'Volumes[].VolumeId' --filters \
            "Name=tag:raymq-cluster,Values=$cluster" "Name=tag:raymq-role,Values=$role" \
            "Name=availability-zone,Values=$zone" "$1"
    }
    own() { list "Name=attachment.instance-id,Values=$machine"; }
    free() { list 'Name=status,Values=available'; }
    attach() { aws ec2 attach-volume --volume-id "$1" --instance-id "$machine" --device /dev/sdf >/dev/null; }
    device() { # NVMe disks are called after their volume, without its hyphen; older machines name the device
        for each in "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_$(echo "$1" | tr -d -)" /dev/xvdf; do
            if [ -e "$each" ]; then echo "$each"; break; fi
        done
    }
    ;;
gcp)
    ask() { curl -fsS -H 'Metadata-Flavor: Google' "http://metadata.google.internal/computeMetadata/v1/instance/$1"; }
    machine=$(ask name) zone=$(ask zone)
    zone=${zone##*/}
    list() {
        gcloud compute disks list --zones "$zone" --format 'value(name)' \
            --filter "labels.raymq-cluster=$cluster AND labels.raymq-role=$role AND $1"
    }
    own() { list "users:instances/$machine"; }
    free() { list '-users:*'; }
    attach() {
        gcloud compute instances attach-disk "$machine" --zone "$zone" --disk "$1" --device-name "$1" --quiet >/dev/null
    }
    device() {
        if [ -e "/dev/disk/by-id/google-$1" ]; then echo "/dev/disk/by-id/google-$1"; fi
    }
    ;;
*)
    say "the first argument is aws or gcp, not $provider"
    exit 2
    ;;
esac

if mountpoint -q "$folder"; then exit 0; fi

waited=0 volume=
while [ -z "$volume" ]; do
    for each in $(own); do volume=$each; break; done
    if [ -z "$volume" ]; then
        # Another machine may be faster: who attaches first has it, and the next one is tried.
        for each in $(free); do
            if attach "$each"; then volume=$each; break; fi
        done
    fi
    if [ -z "$volume" ]; then
        if [ "$waited" -ge "$patience" ]; then
            say "no volume of cluster $cluster for a $role became free in $zone within $patience s"
            exit 1
        fi
        if [ "$waited" -eq 0 ]; then say "waiting for a volume of cluster $cluster for a $role in $zone"; fi
        sleep 5
        waited=$((waited + 5))
    fi
done

waited=0 disk=
while disk=$(device "$volume"); [ -z "$disk" ]; do
    if [ "$waited" -ge 60 ]; then
        say "$volume is attached, but its device did not appear"
        exit 1
    fi
    sleep 1
    waited=$((waited + 1))
done

# blkid -p ends with 2 where it finds nothing on the disk, and with another code where it could not look.
found=0
sudo blkid -p "$disk" >/dev/null || found=$?
if [ "$found" -eq 2 ]; then
    say "$volume is empty: making a file system"
    sudo mkfs.ext4 -q -m 0 -L raymq "$disk"
elif [ "$found" -ne 0 ]; then
    say "the contents of $volume cannot be determined (blkid: $found)"
    exit 1
fi
sudo mkdir -p "$folder"
sudo mount -o noatime "$disk" "$folder"
sudo chown "$(id -u):$(id -g)" "$folder"
say "$volume is mounted on $folder"
